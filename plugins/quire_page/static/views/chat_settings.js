// The settings beside a conversation: models, sampling, form of the answer, tools.

import { html } from "../vendor/preact-htm.js";
import { Amount, Area, Choice, ModelChoice, Switch, Text } from "../parts/fields.js";

const FORMATS = [
  ["text", "free text"],
  ["object", "a JSON object"],
  ["schema", "JSON of a schema"],
  ["regex", "a regular expression"],
  ["choice", "one of a list"],
];
const TOOL_CHOICES = [
  ["auto", "the model decides"],
  ["required", "it must call one"],
  ["none", "it may call none"],
];

const wide = () => matchMedia("(min-width: 60rem)").matches;

export function ChatSettings({ fields, change, choices, first, second }) {
  const set = (name) => (value) => change({ [name]: value });
  return html`
    <details class="settings" open=${wide()}>
      <summary>Settings: ${fields.compare ? `${first} and ${second}` : first}</summary>
      <${ModelChoice}
        label=${fields.compare ? "Left model" : "Model"}
        value=${first}
        onChange=${set("model")}
        choices=${choices}
      />
      <${Switch} label="Compare two side by side" value=${fields.compare} onChange=${set("compare")} />
      ${
        fields.compare &&
        html`
        <${ModelChoice} label="Right model" value=${second} onChange=${set("other")} choices=${choices} />
      `
      }
      <${Area} label="System message" rows=${2} value=${fields.system} onChange=${set("system")} />
      <div class="pairs">
        <${Amount}
          label="Temperature"
          min="0"
          max="2"
          step="0.1"
          value=${fields.temperature}
          onChange=${set("temperature")}
        />
        <${Amount}
          label="Top p"
          min="0"
          max="1"
          step="0.05"
          placeholder="1"
          value=${fields.topP}
          onChange=${set("topP")}
        />
        <${Amount} label="Max tokens" min="1" step="1" value=${fields.maxTokens} onChange=${set("maxTokens")} />
        <${Amount} label="Seed" step="1" placeholder="none" value=${fields.seed} onChange=${set("seed")} />
      </div>
      <${Switch} label="Log-probabilities of tokens" value=${fields.logprobs} onChange=${set("logprobs")} />
      ${
        fields.logprobs &&
        html`
        <${Amount} label="Alternatives shown" min="0" max="20" step="1" value=${fields.top} onChange=${set("top")} />
      `
      }
      <${Choice} label="The answer is" value=${fields.format} onChange=${set("format")} options=${FORMATS} />
      ${
        fields.format === "schema" &&
        html`
        <${Area}
          label="JSON schema"
          rows=${9}
          spellcheck="false"
          class="code"
          value=${fields.schema}
          onChange=${set("schema")}
        />
      `
      }
      ${
        fields.format === "regex" &&
        html`
        <${Text}
          label="Regular expression"
          spellcheck="false"
          class="code"
          value=${fields.pattern}
          onChange=${set("pattern")}
        />
      `
      }
      ${
        fields.format === "choice" &&
        html`
        <${Area} label="Answers, one a line" value=${fields.choices} onChange=${set("choices")} />
      `
      }
      <${Switch} label="Offer tools" value=${fields.useTools} onChange=${set("useTools")} />
      ${
        fields.useTools &&
        html`
        <${Choice}
          label="Tool choice"
          value=${fields.toolChoice}
          onChange=${set("toolChoice")}
          options=${TOOL_CHOICES}
        />
        <${Area}
          label="Tools, as JSON"
          rows=${9}
          spellcheck="false"
          class="code"
          value=${fields.tools}
          onChange=${set("tools")}
        />
      `
      }
    </details>
  `;
}
