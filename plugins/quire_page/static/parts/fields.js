// Form controls with their labels, and the fields of a view that the tab remembers.

import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { saveFields, savedFields } from "../app/session.js";

let made = 0;

const useId = () => useState(() => `field-${++made}`)[0];

// [fields, change]: `change` takes the fields that are new.
export function useFields(name, defaults) {
  const [fields, setFields] = useState(() => savedFields(name, defaults));
  useEffect(() => saveFields(name, fields), [fields]);
  return [fields, (changed) => setFields((before) => ({ ...before, ...changed }))];
}

export function Text({ label, onChange, type = "text", ...rest }) {
  const id = useId();
  return html`
    <div class="field">
      <label for=${id}>${label}</label>
      <input id=${id} type=${type} onInput=${(event) => onChange(event.target.value)} ...${rest} />
    </div>
  `;
}

export const Amount = (given) => html`<${Text} type="number" inputmode="decimal" ...${given} />`;

export function Area({ label, onChange, rows = 4, ...rest }) {
  const id = useId();
  return html`
    <div class="field">
      <label for=${id}>${label}</label>
      <textarea id=${id} rows=${rows} onInput=${(event) => onChange(event.target.value)} ...${rest} />
    </div>
  `;
}

// options: [value, text] of each.
export function Choice({ label, value, onChange, options, disabled = false }) {
  const id = useId();
  return html`
    <div class="field">
      <label for=${id}>${label}</label>
      <select id=${id} value=${value} disabled=${disabled} onChange=${(event) => onChange(event.target.value)}>
        ${options.map(
          ([name, text]) => html`<option key=${name} value=${name} selected=${name === value}>${text}</option>`,
        )}
      </select>
    </div>
  `;
}

// A model or one of its adapters; adapters are listed below their model.
export function ModelChoice({ choices, ...rest }) {
  const options = choices.flatMap(({ model, adapters }) => [
    [model.id, model.id],
    ...adapters.map((name) => [name, `\u00a0\u00a0↳ ${name}`]),
  ]);
  const none = !options.length;
  return html`<${Choice} options=${none ? [["", "none is served"]] : options} disabled=${none} ...${rest} />`;
}

export const Switch = ({ label, value, onChange }) => html`
  <label class="switch">
    <input type="checkbox" checked=${value} onChange=${(event) => onChange(event.target.checked)} />
    <span>${label}</span>
  </label>
`;

export const Problem = ({ error }) =>
  error && html`<p class="problem" role="alert">${error.message ?? String(error)}</p>`;
