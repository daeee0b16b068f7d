// Calls a function at most once for each frame of the screen, with the newest argument.

export function inFrames(call) {
  let frame = 0;
  let waiting = null;
  const flush = () => {
    cancelAnimationFrame(frame);
    frame = 0;
    if (waiting) call(...waiting);
    waiting = null;
  };
  const later = (...values) => {
    waiting = values;
    frame ||= requestAnimationFrame(flush);
  };
  later.flush = flush;
  later.cancel = () => {
    waiting = null;
    flush();
  };
  return later;
}
