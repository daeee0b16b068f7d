// The live view: speed, queue, KV cache and slots of each model, and the use of each adapter, from GET /metrics; and the
// use of each client, from GET /ui/clients.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { clientsOf, growth, parse, snapshot } from "../app/metrics.js";
import { percent, rate, short } from "../app/numbers.js";
import { getJson, getText } from "../app/requests.js";
import { Chart, colorOf } from "../parts/chart.js";
import { Problem } from "../parts/fields.js";

const POLL_MS = 1000;
const KEPT = 300;
const WINDOW = 60;

export function Live({ active, theme }) {
  const [history, setHistory] = useState([]);
  const [error, setError] = useState(null);
  const asking = useRef(false);

  useEffect(() => {
    if (!active) return;
    const ask = async () => {
      if (asking.current || document.hidden) return;
      asking.current = true;
      try {
        const [metrics, clients] = await Promise.all([getText("metrics"), getJson("ui/clients")]);
        const taken = { ...snapshot(parse(metrics), Date.now()), clients: clientsOf(clients.data) };
        setHistory((before) => [...before.slice(1 - KEPT), taken]);
        setError(null);
      } catch (problem) {
        setError(problem);
      }
      asking.current = false;
    };
    ask();
    const timer = setInterval(ask, POLL_MS);
    return () => clearInterval(timer);
  }, [active]);

  const now = history.at(-1);
  const models = now ? Object.keys(now.models) : [];
  const speeds = (field) =>
    lines(history, models, (i, name) => growth(history[i - 1], history[i], "models", name, field));
  const values = (field) => lines(history, models, (i, name) => history[i].models[name]?.[field] ?? 0);
  return html`
    <div class="page">
      <h1>Live</h1>
      <${Problem} error=${error} />
      ${
        now &&
        html`
        <div class="charts">
          <${Chart}
            title="Generated tokens/s"
            names=${models}
            data=${speeds("generated")}
            format=${short}
            theme=${theme}
          />
          <${Chart} title="Prompt tokens/s" names=${models} data=${speeds("prompt")} format=${short} theme=${theme} />
          <${Chart}
            title="Waiting sequences"
            names=${models}
            data=${values("waiting")}
            format=${short}
            theme=${theme}
          />
          <${Chart}
            title="KV cache in use"
            floor=${0.01}
            names=${models}
            data=${values("kv")}
            format=${percent}
            theme=${theme}
          />
        </div>
        <${ModelTable} history=${history} models=${models} />
        <${AdapterTable} history=${history} />
        <${ClientTable} history=${history} />
      `
      }
    </div>
  `;
}

const lines = (history, models, value) => [
  history.map(({ time }) => time / 1000),
  ...models.map((name) => history.map((_, i) => value(i, name))),
];

const Table = ({ label, caption = label, head, children }) => html`
  <div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table>
      <caption>
        ${caption}
      </caption>
      <thead>
        <tr>${head}</tr>
      </thead>
      <tbody>
        ${children}
      </tbody>
    </table>
  </div>
`;

const wordHead = (name) => html`<th scope="col">${name}</th>`;
const numberHead = (name) => html`<th scope="col" class="number">${name}</th>`;

function ModelTable({ history, models }) {
  const [before, now] = [history.at(-2), history.at(-1)];
  const head = [
    wordHead("Model"),
    ...["Generated tokens/s", "Prompt tokens/s", "Running", "Waiting"].map(numberHead),
    wordHead("KV cache"),
    ...["Prefix cache hits", "Adapter slots", "Generated so far"].map(numberHead),
  ];
  return html`
    <${Table} label="Models now" head=${head}>
      ${models.map((name, i) => {
        const row = now.models[name];
        return html`
          <tr key=${name}>
            <th scope="row"><span class="swatch" style=${{ background: `var(${colorOf(i)})` }}></span>${name}</th>
            <td class="number">${rate(growth(before, now, "models", name, "generated"))}</td>
            <td class="number">${rate(growth(before, now, "models", name, "prompt"))}</td>
            <td class="number">${row.running}</td>
            <td class="number">${row.waiting}</td>
            <td>
              <meter min="0" max="1" value=${row.kv} aria-label="KV cache of ${name} in use"></meter>
              ${" "}${percent(row.kv)}
            </td>
            <td class="number">${row.looked ? percent(row.hits / row.looked) : "–"}</td>
            <td class="number">${row.slots === undefined ? "–" : `${row.tier_device ?? 0} of ${row.slots}`}</td>
            <td class="number">${short(row.generated)}</td>
          </tr>
        `;
      })}
    <//>
  `;
}

const USE = ["Requests", "Tokens/s of the last minute", "Prompt tokens", "Generated tokens"].map(numberHead);

// The cells below USE. kind: "adapters" or "clients".
function cellsOfUse(history, kind, key) {
  const now = history.at(-1);
  const before = history.at(-1 - WINDOW) ?? history[0];
  const row = now[kind][key];
  return html`
    <td class="number">${short(row.requests)}</td>
    <td class="number">${rate(growth(before, now, kind, key, "generated"))}</td>
    <td class="number">${short(row.prompt)}</td>
    <td class="number">${short(row.generated)}</td>
  `;
}

function AdapterTable({ history }) {
  const now = history.at(-1);
  const rows = Object.entries(now.adapters);
  if (!rows.length) return html`<p class="hint">No request has used an adapter yet.</p>`;
  const stateOf = ({ model, name }) => {
    const { inUse = [], queued = [] } = now.models[model] ?? {};
    return inUse.includes(name) ? "running" : queued.includes(name) ? "waiting" : "idle";
  };
  return html`
    <${Table}
      label="Adapters"
      caption="Adapters; their tokens are counted when a request ends"
      head=${[...["Adapter", "Model", "Now"].map(wordHead), ...USE]}
    >
      ${rows.map(
        ([key, row]) => html`
          <tr key=${key}>
            <th scope="row">${row.name}</th>
            <td>${row.model}</td>
            <td><span class="state ${stateOf(row)}">${stateOf(row)}</span></td>
            ${cellsOfUse(history, "adapters", key)}
          </tr>
        `,
      )}
    <//>
  `;
}

function ClientTable({ history }) {
  const rows = Object.entries(history.at(-1).clients);
  if (!rows.length) return null;
  return html`
    <${Table}
      label="Clients"
      caption="Clients; a client is an API key, or an address where no key is needed"
      head=${[wordHead("Client"), ...USE]}
    >
      ${rows.map(
        ([name, row]) => html`
          <tr key=${name}>
            <th scope="row">${name}${row.isMe ? " (this page)" : ""}</th>
            ${cellsOfUse(history, "clients", name)}
          </tr>
        `,
      )}
    <//>
  `;
}
