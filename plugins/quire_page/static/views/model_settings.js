// Settings of a model as people type them: a JSON object, or a line for each, as in max-num-seqs=8.

export function settingsOf(text) {
  if (!text.trim()) return {};
  if (text.trim().startsWith("{")) {
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new Error(`The settings are no JSON: ${error.message}`);
    }
  }
  const lines = text.split("\n").map((line) => line.trim());
  return Object.fromEntries(lines.filter((line) => line && !line.startsWith("#")).map(pairOf));
}

function pairOf(line) {
  const [, name, value] = /^(?:--)?([\w-]+)\s*[=:\s]\s*(.+)$/.exec(line) ?? [];
  if (!name) throw new Error(`“${line}” is no setting; a line is a name and a value, as in max-num-seqs=8.`);
  return [name.replaceAll("-", "_"), valueOf(value)];
}

// Numbers, true, false, null, lists and objects are JSON; anything else is a text, which the server reads as its flag does.
function valueOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
