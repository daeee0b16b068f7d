// Dark or light: as the system says, until the button chooses.

import { useEffect, useState } from "../vendor/preact-htm.js";

const NAME = "quire.theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

// [theme, change]; theme: "dark" or "light".
export function useTheme() {
  const [system, setSystem] = useState(dark.matches ? "dark" : "light");
  const [own, setOwn] = useState(localStorage.getItem(NAME));
  const theme = own ?? system;
  useEffect(() => {
    const follow = () => setSystem(dark.matches ? "dark" : "light");
    dark.addEventListener("change", follow);
    return () => dark.removeEventListener("change", follow);
  }, []);
  document.documentElement.dataset.theme = theme;
  return [
    theme,
    () => {
      const next = theme === "dark" ? "light" : "dark";
      localStorage.setItem(NAME, next);
      setOwn(next);
    },
  ];
}
