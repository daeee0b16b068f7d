// Reads GET /metrics: Prometheus' text format, and the numbers that the live view shows.

const LINE = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([a-zA-Z_][a-zA-Z0-9_]*)="((?:\\.|[^"\\])*)",?/g;
const ESCAPES = { n: "\n", '"': '"', "\\": "\\" };

// The samples of a scrape: [{name, labels, value}].
export function parse(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = line[0] === "#" ? null : LINE.exec(line);
    if (found) samples.push({ name: found[1], labels: labelsOf(found[2] ?? ""), value: Number(found[3]) });
  }
  return samples;
}

function labelsOf(text) {
  const labels = {};
  for (const [, name, value] of text.matchAll(LABEL)) labels[name] = value.replace(/\\(.)/g, (_, c) => ESCAPES[c] ?? c);
  return labels;
}

const OF_MODEL = {
  num_requests_running: "running",
  num_requests_waiting: "waiting",
  kv_cache_usage_perc: "kv",
  generation_tokens_total: "generated",
  prompt_tokens_total: "prompt",
  prefix_cache_queries_total: "looked",
  prefix_cache_hits_total: "hits",
};
const OF_ADAPTER = {
  adapter_requests_total: "requests",
  adapter_prompt_tokens_total: "prompt",
  adapter_generation_tokens_total: "generated",
};

// One scrape: {time, models: {name: numbers}, adapters: {"model adapter": numbers}}. The prefix of the names is a
// setting of the server (--metrics-prefix), so it is read from a name that is always there.
export function snapshot(samples, time) {
  const models = {};
  const adapters = {};
  const known = samples.find(({ name }) => name.endsWith("num_requests_running"));
  const prefix = known ? known.name.slice(0, -"num_requests_running".length) : "";
  for (const { name, labels, value } of samples) {
    const model = labels.model_name;
    if (model === undefined || !name.startsWith(prefix)) continue;
    const bare = name.slice(prefix.length);
    if (bare in OF_MODEL) add((models[model] ??= {}), OF_MODEL[bare], value);
    if (bare === "num_requests_running") add(models[model], "engines", 1);
    if (bare === "lora_requests_info") addSlots((models[model] ??= {}), labels);
    if (bare === "adapters") add((models[model] ??= {}), `tier_${labels.tier}`, value);
    if (bare in OF_ADAPTER) {
      const key = `${model}\n${labels.adapter_name}`;
      const row = (adapters[key] ??= { model, name: labels.adapter_name });
      row[OF_ADAPTER[bare]] = value;
    }
  }
  for (const model of Object.values(models)) if (model.kv) model.kv /= model.engines;
  return { time, models, adapters };
}

// A model has samples of each engine process (--data-parallel-size).
function add(row, field, value) {
  row[field] = (row[field] ?? 0) + value;
}

// The rows of GET /ui/clients as a group of a snapshot.
export function clientsOf(rows) {
  return Object.fromEntries(
    rows.map((row) => [
      row.client,
      {
        isMe: row.is_me,
        requests: row.num_requests,
        prompt: row.num_prompt_tokens,
        generated: row.num_generated_tokens,
      },
    ]),
  );
}

function addSlots(row, labels) {
  const names = (known, text) => [...new Set([...(known ?? []), ...(text ? text.split(",") : [])])];
  add(row, "slots", Number(labels.max_lora));
  row.inUse = names(row.inUse, labels.running_lora_adapters);
  row.queued = names(row.queued, labels.waiting_lora_adapters);
}

// How much a counter of a row grew per second between two scrapes. A row that is new began at 0, and a counter that
// fell began anew.
export function growth(before, after, group, key, field) {
  const first = before?.[group][key]?.[field] ?? 0;
  const last = after[group][key]?.[field];
  const passed = (after.time - (before?.time ?? after.time)) / 1000;
  if (last === undefined || passed <= 0) return 0;
  return Math.max(0, last - first) / passed;
}
