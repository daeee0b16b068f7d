// The form that loads a model while others are served, with the progress of the load.

import { html, useRef, useState } from "../vendor/preact-htm.js";
import { settingsOf } from "./model_settings.js";
import { percent, seconds } from "../app/numbers.js";
import { getJson, postJson } from "../app/requests.js";
import { CopyButtons } from "../parts/copy.js";
import { Area, Problem, Text, useFields } from "../parts/fields.js";

const PATH = "v1/load_model";
const POLL_MS = 200;
const DEFAULTS = { name: "", model: "", settings: "" };
const IDLE = { name: "", progress: 0, said: "", error: null };

export function LoadModelForm({ refresh }) {
  const [fields, change] = useFields("load-model", DEFAULTS);
  const [load, setLoad] = useState(IDLE);
  const stopped = useRef(false);
  const set = (name) => (value) => change({ [name]: value });

  const body = () => ({ name: fields.name, model: fields.model, settings: settingsOf(fields.settings) });
  const send = async (event) => {
    event.preventDefault();
    const began = performance.now();
    const passed = () => seconds((performance.now() - began) / 1000);
    stopped.current = false;
    try {
      const request = body();
      setLoad({ ...IDLE, name: request.name, said: `${request.name} is being loaded …` });
      await postJson(PATH, { ...request, wait: false });
      const card = await ended(request.name, ({ progress }) =>
        setLoad((before) => ({
          ...before,
          progress,
          said: `${request.name} is being loaded: ${percent(progress)} after ${passed()}`,
        })),
      );
      if (card.state !== "ready") throw new Error(card.error ?? `${request.name} is ${card.state}.`);
      setLoad({ ...IDLE, said: `${card.id} is ready after ${passed()}.` });
    } catch (error) {
      const ending = stopped.current && error.status === 404;
      setLoad(ending ? { ...IDLE, said: `${fields.name} was not loaded.` } : { ...IDLE, error });
    }
    await refresh();
  };
  const stop = async () => {
    stopped.current = true;
    await postJson("v1/unload_model", { name: load.name }).catch((error) => setLoad((before) => ({ ...before, error })));
  };

  return html`
    <form class="card load" onSubmit=${send} aria-labelledby="load-model-title">
      <h2 id="load-model-title">Load a model</h2>
      <div class="row">
        <${Text} label="Name of the model" required value=${fields.name} onChange=${set("name")} />
        <${Text}
          label="Folder, hub id or demo"
          required
          spellcheck="false"
          value=${fields.model}
          onChange=${set("model")}
        />
      </div>
      <${Area}
        label="Settings: a JSON object, or a line for each, as in max-num-seqs=8"
        rows=${2}
        spellcheck="false"
        value=${fields.settings}
        onChange=${set("settings")}
      />
      <div class="actions">
        <button type="submit" class="primary" disabled=${Boolean(load.name)}>Load model</button>
        ${load.name && html`<button type="button" onClick=${stop}>Stop loading</button>`}
        <${CopyButtons} path=${PATH} body=${body} />
      </div>
      ${load.name && html`<progress aria-label="The model is being loaded" max="1" value=${load.progress}></progress>`}
      <p role="status">${load.said}</p>
      <${Problem} error=${load.error} />
    </form>
  `;
}

// The details of a model as soon as it is loaded or has failed.
async function ended(name, onTick) {
  for (;;) {
    const card = await getJson(`v1/models/${encodeURIComponent(name)}`);
    if (card.state !== "loading") return card;
    onTick(card);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}
