// The two dialogs: the API key, and the keys of the keyboard.

import { html, useEffect, useRef } from "../vendor/preact-htm.js";
import { apiKey, setApiKey } from "../app/session.js";

// A modal dialog that is open while `open` is true; Escape closes it.
function Dialog({ open, onClose, label, children }) {
  const box = useRef(null);
  useEffect(() => {
    if (open && !box.current.open) box.current.showModal();
    if (!open && box.current.open) box.current.close();
  }, [open]);
  return html`<dialog ref=${box} aria-label=${label} onClose=${onClose}>${open && children}</dialog>`;
}

export function KeyDialog({ open, onClose, onChange }) {
  const save = (event) => {
    event.preventDefault();
    setApiKey(new FormData(event.target).get("key").trim());
    onClose();
    onChange();
  };
  const forget = () => {
    setApiKey("");
    onClose();
    onChange();
  };
  return html`
    <${Dialog} open=${open} onClose=${onClose} label="API key">
      <form class="dialog" onSubmit=${save}>
        <h2>API key</h2>
        <p>It stays in this tab: closing the tab forgets it. With an admin key you can also load adapters.</p>
        <div class="field">
          <label for="api-key">Key</label>
          <input id="api-key" type="password" name="key" autocomplete="off" value=${apiKey()} autofocus />
        </div>
        <div class="actions">
          <button type="submit" class="primary">Use it</button>
          <button type="button" onClick=${forget}>Forget it</button>
          <button type="button" onClick=${onClose}>Cancel</button>
        </div>
      </form>
    <//>
  `;
}

const KEYS = [
  ["Alt 1 … 7", "the views, from left to right"],
  ["Alt /", "to the first field of a view"],
  ["Enter", "sends a message; Shift Enter begins a line"],
  ["Ctrl Enter", "sends the form of the other views"],
  ["Escape", "stops an answer"],
  ["Alt N", "a new conversation"],
  ["← →", "from token to token, where log-probabilities are shown"],
];

const LIBRARIES = [
  ["Preact", "MIT", "ui/vendor/LICENSE-preact.txt"],
  ["htm", "Apache 2.0", "ui/vendor/LICENSE-htm.txt"],
  ["uPlot", "MIT", "ui/vendor/LICENSE-uplot.txt"],
];

export const HelpDialog = ({ open, onClose, version }) => html`
  <${Dialog} open=${open} onClose=${onClose} label="Help">
    <div class="dialog">
      <h2>Keyboard</h2>
      <dl class="keys">
        ${KEYS.map(([key, meaning]) => html`<dt key=${key}><kbd>${key}</kbd></dt><dd>${meaning}</dd>`)}
      </dl>
      <p>
        Quire ${version}. <a href="docs">The routes of this server</a>. The page contains
        ${LIBRARIES.map(
          ([name, licence, file], i) =>
            html`<span key=${name}>${i ? ", " : " "}${name} (<a href=${file}>${licence}</a>)</span>`,
        )}.
      </p>
      <div class="actions"><button type="button" class="primary" onClick=${onClose}>Close</button></div>
    </div>
  <//>
`;
