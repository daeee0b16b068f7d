// Form controls with their labels, and the fields of a view that the tab remembers.

import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { saveFields, savedFields } from "../app/session.js";

// [fields, change]: `change` takes the fields that are new.
export function useFields(name, defaults) {
  const [fields, setFields] = useState(() => savedFields(name, defaults));
  useEffect(() => saveFields(name, fields), [fields]);
  return [fields, (changed) => setFields((before) => ({ ...before, ...changed }))];
}

export const Text = ({ label, value, onChange, ...rest }) => html`
  <label class="field"
    ><span>${label}</span><input type="text" value=${value} onInput=${(e) => onChange(e.target.value)} ...${rest} />
  </label>
`;

export const Amount = ({ label, value, onChange, ...rest }) => html`
  <label class="field"
    ><span>${label}</span
    ><input type="number" inputmode="decimal" value=${value} onInput=${(e) => onChange(e.target.value)} ...${rest} />
  </label>
`;

export const Area = ({ label, value, onChange, rows = 4, ...rest }) => html`
  <label class="field"
    ><span>${label}</span><textarea rows=${rows} value=${value} onInput=${(e) => onChange(e.target.value)} ...${rest} />
  </label>
`;

export const Choice = ({ label, value, onChange, options }) => html`
  <label class="field"
    ><span>${label}</span>
    <select value=${value} onChange=${(e) => onChange(e.target.value)}>
      ${options.map(([name, text]) => html`<option key=${name} value=${name} selected=${name === value}>${text}</option>`)}
    </select>
  </label>
`;

export const Switch = ({ label, value, onChange }) => html`
  <label class="switch"><input type="checkbox" checked=${value} onChange=${(e) => onChange(e.target.checked)} /><span>${label}</span></label>
`;

// A model or one of its adapters; adapters are listed below their model.
export const ModelChoice = ({ label, value, onChange, choices }) => html`
  <label class="field model-choice"
    ><span>${label}</span>
    <select value=${value} onChange=${(e) => onChange(e.target.value)} disabled=${!choices.length}>
      ${!choices.length && html`<option value="">none is served</option>`}
      ${choices.map(
        ({ model, adapters }) => html`
          <option key=${model.id} value=${model.id} selected=${model.id === value}>${model.id}</option>
          ${adapters.map((name) => html`<option key=${name} value=${name} selected=${name === value}>  ↳ ${name}</option>`)}
        `,
      )}
    </select>
  </label>
`;

export const Problem = ({ error }) =>
  error && html`<p class="problem" role="alert">${error.message ?? String(error)}</p>`;
