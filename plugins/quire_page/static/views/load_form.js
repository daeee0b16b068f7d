// The form that loads an adapter, with the progress of the load.

import { html, useState } from "../vendor/preact-htm.js";
import { postText } from "../app/requests.js";
import { seconds } from "../app/numbers.js";
import { CopyButtons } from "../parts/copy.js";
import { Choice, Problem, Switch, Text, useFields } from "../parts/fields.js";

const PATH = "v1/load_lora_adapter";
const POLL_MS = 150;
const DEFAULTS = { name: "", path: "", base: "", pinned: false, replace: false };

export function LoadForm({ models, refresh }) {
  const [fields, change] = useFields("load", DEFAULTS);
  const [load, setLoad] = useState({ running: false, said: "", error: null });
  const set = (name) => (value) => change({ [name]: value });

  const body = () => ({
    lora_name: fields.name,
    lora_path: fields.path,
    ...(fields.base && { base_model_name: fields.base }),
    ...(fields.pinned && { pinned: true }),
    ...(fields.replace && { load_inplace: true }),
  });
  const send = async (event) => {
    event.preventDefault();
    const began = performance.now();
    const passed = () => seconds((performance.now() - began) / 1000);
    setLoad({ running: true, said: `${fields.name} is being loaded …`, error: null });
    try {
      await postText(PATH, { ...body(), wait: false });
      const row = await ended(fields.name, refresh, () =>
        setLoad((before) => ({ ...before, said: `${fields.name} is being loaded: ${passed()}` })),
      );
      if (row?.state !== "ready") throw new Error(row?.error ?? `${fields.name} was unloaded meanwhile.`);
      setLoad({ running: false, said: `${row.id} is ready after ${passed()}.`, error: null });
    } catch (error) {
      await refresh();
      setLoad({ running: false, said: "", error });
    }
  };

  return html`
    <form class="card load" onSubmit=${send} aria-labelledby="load-title">
      <h2 id="load-title">Load an adapter</h2>
      <div class="row">
        <${Text} label="Name" required value=${fields.name} onChange=${set("name")} />
        <${Text}
          label="Folder on the server, or a name that a plugin resolves"
          required
          spellcheck="false"
          value=${fields.path}
          onChange=${set("path")}
        />
        <${Choice}
          label="Base model"
          value=${fields.base}
          onChange=${set("base")}
          options=${[["", "as its files say"], ...models.map(({ id }) => [id, id])]}
        />
      </div>
      <div class="actions">
        <${Switch} label="Keep it in CPU memory" value=${fields.pinned} onChange=${set("pinned")} />
        <${Switch} label="Replace one of the same name" value=${fields.replace} onChange=${set("replace")} />
      </div>
      <div class="actions">
        <button type="submit" class="primary" disabled=${load.running}>Load</button>
        <${CopyButtons} path=${PATH} body=${body} />
      </div>
      ${load.running && html`<progress aria-label="The adapter is being loaded"></progress>`}
      <p role="status">${load.said}</p>
      <${Problem} error=${load.error} />
    </form>
  `;
}

// The adapter's row as soon as it is loaded or has failed; undefined if it has gone.
async function ended(name, refresh, onTick) {
  for (;;) {
    const row = (await refresh()).find(({ id }) => id === name);
    if (row?.state !== "loading") return row;
    onTick();
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}
