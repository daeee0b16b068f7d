// One product of emulated tiles, called from a test: x [rows][row_bytes], w [row_bytes / 4][64], sums [rows][16].
#include "emulate.hpp"

extern "C" void tile_product(int kind, int rows, int row_bytes, const void* x, const void* w, int w_rows, void* sums) {
  uint8_t config[64] = {1};
  const int heights[3] = {rows, rows, w_rows}, widths[3] = {64, row_bytes, 64};
  for (int i = 0; i < 3; i++) config[48 + i] = static_cast<uint8_t>(heights[i]), config[16 + 2 * i] = static_cast<uint8_t>(widths[i]);
  _tile_loadconfig(config);
  _tile_loadd(0, sums, 64);
  _tile_loadd(1, x, row_bytes);
  _tile_loadd(2, w, 64);
  if (kind == 0) _tile_dpbssd(0, 1, 2);
  if (kind == 1) _tile_dpbsud(0, 1, 2);
  if (kind == 2) _tile_dpbusd(0, 1, 2);
  if (kind == 3) _tile_dpbuud(0, 1, 2);
  if (kind == 4) _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, sums, 64);
  _tile_release();
  if (kind == 5) _tile_zero(0);
}
