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
        <label class="field"><span>Key</span><input type="password" name="key" autocomplete="off" value=${apiKey()} autofocus /></label>
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

export const HelpDialog = ({ open, onClose, version }) => html`
  <${Dialog} open=${open} onClose=${onClose} label="Help">
    <div class="dialog">
      <h2>Keyboard</h2>
      <dl class="keys">
        ${KEYS.map(([key, meaning]) => html`<dt key=${key}><kbd>${key}</kbd></dt><dd>${meaning}</dd>`)}
      </dl>
      <p>
        Quire ${version}. <a href="docs">The routes of this server</a>. The page contains Preact (<a href="ui/vendor/LICENSE-preact.txt">MIT</a>), htm
        (<a href="ui/vendor/LICENSE-htm.txt">Apache 2.0</a>) and uPlot (<a href="ui/vendor/LICENSE-uplot.txt">MIT</a>).
      </p>
      <div class="actions"><button type="button" class="primary" onClick=${onClose}>Close</button></div>
    </div>
  <//>
`;
