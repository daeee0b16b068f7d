// Numbers as people read them.

const UNITS = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

export function short(value) {
  if (!Number.isFinite(value)) return "–";
  const [size, unit] = UNITS.find(([limit]) => Math.abs(value) >= limit) ?? [1, ""];
  const digits = String(Number((value / size).toPrecision(3)));
  return unit ? `${digits} ${unit}` : digits;
}

export const bytes = (value) => (value > 0 ? `${short(value)}B`.replace(/(\d)B$/, "$1 B") : "–");
export const percent = (value) =>
  Number.isFinite(value) ? `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %` : "–";
export const seconds = (value) => (value < 1 ? `${Math.round(1000 * value)} ms` : `${value.toFixed(2)} s`);
export const rate = (value) => (Number.isFinite(value) ? value.toFixed(value > 0 && value < 10 ? 1 : 0) : "–");
