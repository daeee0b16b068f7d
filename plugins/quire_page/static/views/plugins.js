// The loaded plugins: what each brings, and the counters of its calls.

import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { seconds, short } from "../app/numbers.js";
import { getJson } from "../app/requests.js";
import { Problem, Text } from "../parts/fields.js";

const POLL_MS = 2000;

export function Plugins({ active }) {
  const [rows, setRows] = useState(null);
  const [error, setError] = useState(null);
  const [wanted, setWanted] = useState("");

  useEffect(() => {
    if (!active) return;
    const ask = async () => {
      if (document.hidden) return;
      try {
        setRows((await getJson("plugins")).data);
        setError(null);
      } catch (problem) {
        setError(problem);
      }
    };
    ask();
    const timer = setInterval(ask, POLL_MS);
    return () => clearInterval(timer);
  }, [active]);

  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = rows?.filter((row) => words.every((word) => textOf(row).includes(word))).sort(busyFirst) ?? [];
  return html`
    <div class="page">
      <h1>Plugins</h1>
      <${Problem} error=${error} />
      <${Text}
        label="Show those with"
        type="search"
        placeholder="a name, a hook or a record"
        value=${wanted}
        onChange=${setWanted}
      />
      <div class="scroll" tabindex="0" role="region" aria-label="Plugins">
        <table>
          <thead>
            <tr>
              <th scope="col">Plugin</th>
              <th scope="col">Brings</th>
              <th scope="col" class="number">Calls</th>
              <th scope="col" class="number">Errors</th>
              <th scope="col" class="number">Time</th>
              <th scope="col" class="number">Dropped</th>
              <th scope="col">State</th>
            </tr>
          </thead>
          <tbody>
            ${shown.map((row) => html`<${Plugin} key=${row.name} row=${row} />`)}
            ${rows && !shown.length && html`<tr><td colspan="7">No plugin matches.</td></tr>`}
          </tbody>
        </table>
      </div>
    </div>
  `;
}

const textOf = (row) => JSON.stringify([row.name, row.distribution, row.hooks, row.records]).toLowerCase();

const plain = (hook) => hook.replace("quire_", "").replaceAll("_", " ");
const busyFirst = (a, b) => b.calls - a.calls || a.name.localeCompare(b.name);

const stateOf = (row) => (row.error || row.off.length ? "failed" : row.enabled ? "ready" : "idle");

const Plugin = ({ row }) => html`
  <tr>
    <th scope="row">${row.name}<br /><span class="hint">${row.distribution} ${row.version}</span></th>
    <td>
      ${Object.entries(row.records).map(
        ([hook, names]) => html`<p key=${hook}><span class="hint">${plain(hook)}:</span> ${names.join(", ")}</p>`,
      )}
    </td>
    <td class="number">${short(row.calls)}</td>
    <td class="number ${row.errors ? "bad" : ""}">${short(row.errors)}</td>
    <td class="number">${seconds(row.seconds)}</td>
    <td class="number">${short(row.dropped)}</td>
    <td>
      <span
        class="state ${stateOf(row)}"
      >
        ${row.off.length ? `off: ${row.off.join(", ")}` : row.enabled ? "on" : "off"}
      </span>
      ${row.error && html`<p class="problem">${row.error}</p>`}
    </td>
  </tr>
`;
