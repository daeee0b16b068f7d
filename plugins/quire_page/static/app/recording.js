// Recordings of the microphone, as WAV files of 16 kHz, which every server reads without further packages.

const RATE = 16000;

// Starts to record. `stop` ends it and resolves to the WAV file. Throws Error with a sentence if it is not possible.
export async function record() {
  if (!navigator.mediaDevices) throw new Error("Browsers give the microphone to pages on https or localhost only.");
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream);
  const pieces = [];
  recorder.addEventListener("dataavailable", ({ data }) => pieces.push(data));
  const ended = new Promise((resolve) => recorder.addEventListener("stop", resolve, { once: true }));
  recorder.start();
  return {
    async stop() {
      recorder.stop();
      await ended;
      for (const track of stream.getTracks()) track.stop();
      return toWav(new Blob(pieces, { type: recorder.mimeType }));
    },
  };
}

async function toWav(blob) {
  const decoded = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await blob.arrayBuffer());
  return new Blob([wav(mono(decoded), RATE)], { type: "audio/wav" });
}

function mono(audio) {
  const mixed = new Float32Array(audio.length);
  for (let channel = 0; channel < audio.numberOfChannels; channel++) {
    const samples = audio.getChannelData(channel);
    for (let i = 0; i < mixed.length; i++) mixed[i] += samples[i] / audio.numberOfChannels;
  }
  return mixed;
}

// A RIFF file of 16-bit PCM with one channel. samples: from -1 to 1.
export function wav(samples, rate) {
  const bytes = new ArrayBuffer(44 + 2 * samples.length);
  const view = new DataView(bytes);
  const text = (at, word) => [...word].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, i) => view.setInt16(44 + 2 * i, Math.max(-1, Math.min(1, sample)) * 0x7fff, true));
  return bytes;
}
