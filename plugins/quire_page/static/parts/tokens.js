// An answer token by token: the darker the mark, the less likely the token; the chosen one shows its alternatives.

import { html, useRef, useState } from "../vendor/preact-htm.js";

const LEVELS = [0.9, 0.6, 0.3, 0.1];

const levelOf = (logprob) => (logprob === null ? 0 : LEVELS.filter((limit) => Math.exp(logprob) < limit).length);
const shown = (text) => (text === "" ? "∅" : text.replace(/\n/g, "⏎").replace(/\t/g, "⇥"));
const logOf = ({ logprob }) => logprob.toFixed(3).replace("-0.000", "0");
const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;

// Arrow keys go from token to token: the list is one stop of the Tab key.
export function Tokens({ tokens }) {
  const [at, setAt] = useState(null);
  const list = useRef(null);
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(tokens.length - 1, (at ?? 0) + step));
    list.current.children[next].focus();
  };
  return html`
    <div class="tokens" ref=${list} role="toolbar" aria-label="Tokens of the answer" onKeyDown=${move}>
      ${tokens.map(
        (token, i) => html`
          <button
            key=${i}
            type="button"
            class="token level-${levelOf(token.logprob)}"
            tabindex=${i === (at ?? 0) ? 0 : -1}
            aria-pressed=${i === at}
            onClick=${() => setAt(i)}
            onFocus=${() => setAt(i)}
          >
            ${shown(token.text)}
          </button>
        `,
      )}
    </div>
    ${at === null && html`<p class="hint">Choose a token to see how likely it was.</p>`}
    ${at !== null && html`<${Alternatives} token=${tokens[at]} />`}
  `;
}

function Alternatives({ token }) {
  if (!token || token.logprob === null) return null;
  const others = token.top.length ? token.top : [token];
  return html`
    <table class="alternatives">
      <caption>
        “${shown(token.text)}” had a probability of ${percent(token.logprob)} (log ${logOf(token)})
      </caption>
      <tbody>
        ${others.map(
          (other) => html`
            <tr class=${other.text === token.text ? "own" : ""}>
              <th scope="row"><code>${shown(other.text)}</code></th>
              <td><span class="bar" style=${{ width: `${100 * Math.exp(other.logprob)}%` }}></span></td>
              <td class="number">${percent(other.logprob)}</td>
            </tr>
          `,
        )}
      </tbody>
    </table>
  `;
}
