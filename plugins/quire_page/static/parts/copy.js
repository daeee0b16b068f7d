// Buttons that copy a request as a curl command or as Python.

import { html, useState } from "../vendor/preact-htm.js";
import { addressOf } from "../app/requests.js";
import { apiKey } from "../app/session.js";
import { curl, python } from "../app/snippets.js";

const SHOWN_MS = 1500;

// body: a function that makes the request's body, and may throw Error.
export function CopyButtons({ path, body }) {
  const [said, setSaid] = useState("");
  const say = (text) => {
    setSaid(text);
    setTimeout(() => setSaid(""), SHOWN_MS);
  };
  const copy = async (form) => {
    try {
      await toClipboard(form(body()));
      say("copied");
    } catch (error) {
      say(error.message);
    }
  };
  const withKey = apiKey() !== "";
  return html`
    <span class="copy">
      <button type="button" class="quiet" onClick=${() => copy((made) => curl(addressOf(path), made, withKey))}>
        Copy as curl
      </button>
      <button type="button" class="quiet" onClick=${() => copy((made) => python(addressOf(""), path, made, withKey))}>
        Copy as Python
      </button>
      <span role="status" class="said">${said}</span>
    </span>
  `;
}

// Pages on http of another machine have no clipboard object; there the older command copies a selection.
async function toClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "off-screen";
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("The browser does not allow it.");
}
