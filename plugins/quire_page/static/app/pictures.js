// Pictures that are chosen, dropped or pasted, as data: URLs. Large ones are made smaller before they are sent.

const MAX_BYTES = 3 << 20;
const MAX_SIDE = 2048;

export const isPicture = (file) => file.type.startsWith("image/");

export async function readPicture(file) {
  const blob = file.size > MAX_BYTES ? await smaller(file) : file;
  return { name: file.name || "picture", url: await dataUrl(blob) };
}

async function smaller(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, MAX_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(scale * bitmap.width));
  canvas.height = Math.max(1, Math.round(scale * bitmap.height));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.9));
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(new Error("The picture cannot be read.")));
    reader.readAsDataURL(blob);
  });
}
