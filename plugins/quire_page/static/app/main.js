// The page: its views, the header that switches between them, and keys of the keyboard.

import { html, render, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { apiKey } from "./session.js";
import { useServer } from "./server.js";
import { useTheme } from "./theme.js";
import { HelpDialog, KeyDialog } from "../parts/dialogs.js";
import { Chat } from "../views/chat.js";
import { Completion } from "../views/completion.js";
import { Embeddings } from "../views/embeddings.js";
import { Live } from "../views/live.js";
import { Models } from "../views/models.js";
import { Plugins } from "../views/plugins.js";
import { Ranking } from "../views/ranking.js";

const VIEWS = [
  ["chat", "Chat", Chat],
  ["complete", "Complete", Completion],
  ["embed", "Embed", Embeddings],
  ["rank", "Rank", Ranking],
  ["models", "Models", Models],
  ["live", "Live", Live],
  ["plugins", "Plugins", Plugins],
];

const viewOf = (hash) => (VIEWS.find(([name]) => `#${name}` === hash) ?? VIEWS[0])[0];
const go = (name) => (location.hash = name);

function useView() {
  const [view, setView] = useState(viewOf(location.hash));
  useEffect(() => {
    const follow = () => setView(viewOf(location.hash));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return view;
}

function useKeys(view) {
  useEffect(() => {
    const onKey = (event) => {
      if (!event.altKey || event.ctrlKey || event.metaKey) return;
      const number = /^Digit([1-7])$/.exec(event.code)?.[1];
      if (number) go(VIEWS[number - 1][0]);
      else if (event.code === "Slash")
        document.querySelector(`#view-${view} textarea, #view-${view} input, #view-${view} select`)?.focus();
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [view]);
}

function Page() {
  const server = useServer();
  const view = useView();
  const [theme, changeTheme] = useTheme();
  const [dialog, setDialog] = useState("");
  const [wanted, setWanted] = useState(null);
  const seen = useRef(new Set());
  seen.current.add(view);
  useKeys(view);
  useEffect(() => {
    if (server.error?.status === 401) setDialog("key");
  }, [server.error]);
  const use = (model) => {
    setWanted({ model });
    go("chat");
  };
  return html`
    <${Header} view=${view} theme=${theme} onTheme=${changeTheme} onDialog=${setDialog} />
    ${server.error && html`<p class="notice problem" role="alert">${server.error.message}</p>`}
    <main>
      ${VIEWS.filter(([name]) => seen.current.has(name)).map(
        ([name, , View]) => html`
          <div key=${name} id="view-${name}" class="view" hidden=${name !== view}>
            <${View} server=${server} active=${name === view} theme=${theme} wanted=${wanted} onUse=${use} />
          </div>
        `,
      )}
    </main>
    <${KeyDialog} open=${dialog === "key"} onClose=${() => setDialog("")} onChange=${server.refresh} />
    <${HelpDialog} open=${dialog === "help"} onClose=${() => setDialog("")} version=${server.version} />
  `;
}

function Header({ view, theme, onTheme, onDialog }) {
  const links = useRef(null);
  useEffect(() => links.current.querySelector("[aria-current]").scrollIntoView({ block: "nearest" }), [view]);
  const other = theme === "dark" ? "light" : "dark";
  return html`
    <header class="top">
      <a class="brand" href="#chat"><img src="ui/icon.svg" alt="" width="22" height="22" />Quire</a>
      <nav aria-label="Views" ref=${links}>
        ${VIEWS.map(
          ([name, title]) =>
            html`<a key=${name} href="#${name}" aria-current=${name === view ? "page" : undefined}>${title}</a>`,
        )}
      </nav>
      <span class="tools">
        <button
          type="button"
          class="quiet"
          aria-label=${apiKey() ? "API key: set" : "API key: none"}
          onClick=${() => onDialog("key")}
        >
          Key${apiKey() ? " ✓" : ""}
        </button>
        <button type="button" class="quiet" aria-label="Change to the ${other} theme" onClick=${onTheme}>
          ${theme === "dark" ? "☀" : "☾"}
        </button>
        <button type="button" class="quiet" aria-label="Help" onClick=${() => onDialog("help")}>?</button>
      </span>
    </header>
  `;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${Page} />`, root);
