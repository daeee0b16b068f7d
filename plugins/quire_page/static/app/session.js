// What this tab remembers: the API key and the fields of the views. It ends with the tab.

const KEY = "quire.key";
const FIELDS = "quire.fields.";

export const apiKey = () => sessionStorage.getItem(KEY) ?? "";

export function setApiKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

// The fields of a view: those that were saved, over the defaults.
export function savedFields(name, defaults) {
  try {
    return { ...defaults, ...JSON.parse(sessionStorage.getItem(FIELDS + name)) };
  } catch {
    return { ...defaults };
  }
}

export function saveFields(name, fields) {
  try {
    sessionStorage.setItem(FIELDS + name, JSON.stringify(fields));
  } catch {
    // The tab's storage is full: the fields last as long as the page.
  }
}
