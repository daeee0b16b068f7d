// Sums in AMX tiles: 32 rows by one panel at a time, four tiles of 16 × 16 sums (Intel SDM vol. 1, ch. 18).
#pragma once
#include <immintrin.h>

namespace quire {


struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, unused[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

constexpr int64_t AHEAD = 16 * 16;  // units between what is read and what is asked for: 32 KiB

// The weights of one step, to be in the second-level cache when their turn comes; beyond the end it does no harm.
inline void ask_for(const uint32_t* w) {
  for (int i = 0; i < 32; i++) _mm_prefetch(reinterpret_cast<const char*>(w + i * LANES), _MM_HINT_T1);
}

struct AmxTiles {
  static constexpr int64_t ROWS = 32;
  int64_t configured = 0;

  // Tiles 0-3: sums of the upper and lower 16 rows, left and right 16 outputs; 4, 5: x; 6, 7: weights.
  void configure(int64_t rows) {
    if (configured == rows) return;
    configured = rows;
    const uint8_t upper = static_cast<uint8_t>(std::min<int64_t>(rows, 16));
    const uint8_t lower = static_cast<uint8_t>(rows > 16 ? rows - 16 : 1);
    TileConfig config;
    const uint8_t heights[8] = {upper, upper, lower, lower, upper, lower, 16, 16};
    for (int i = 0; i < 8; i++) {
      config.rows[i] = heights[i];
      config.row_bytes[i] = 64;
    }
    _tile_loadconfig(&config);
  }

  // first: these weights were not read before; then those that come next are asked for.
  void sums(int64_t rows, const bf16* x, int64_t stride, const uint32_t* w, int64_t units, bool first, float* out) {
    configure(rows);
    const int64_t bytes = stride * static_cast<int64_t>(sizeof(bf16));
    _tile_zero(0);
    _tile_zero(1);
    if (rows <= 16) {  // so little to do that loads come early enough
      for (int64_t u = 0; u < units; u += 16) {
        _tile_loadd(6, w + u * PANEL, 4 * PANEL);
        _tile_loadd(7, w + u * PANEL + LANES, 4 * PANEL);
        _tile_loadd(4, x + 2 * u, bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
      }
    } else {
      _tile_zero(2);
      _tile_zero(3);
      for (int64_t u = 0; u < units; u += 16) {
        if (first) ask_for(w + (u + AHEAD) * PANEL);
        _tile_loadd(6, w + u * PANEL, 4 * PANEL);
        _tile_loadd(4, x + 2 * u, bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w + u * PANEL + LANES, 4 * PANEL);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, x + 16 * stride + 2 * u, bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(2, out + 16 * PANEL, 4 * PANEL);
      _tile_stored(3, out + 16 * PANEL + LANES, 4 * PANEL);
    }
    _tile_stored(0, out, 4 * PANEL);
    _tile_stored(1, out + LANES, 4 * PANEL);
  }
};

// What a tile gives for one row, to the last bit, by vectors: the products of even and of odd inputs are summed apart
// for 16 units, from zero, and then both are added (SDM vol. 2, TDPBF16PS). A single row is bound by memory, which vectors
// read faster than tiles do.
struct SingleRow {
  static constexpr int64_t ROWS = 1;

  static F16 even(U16 x) { return {_mm512_castsi512_ps(_mm512_slli_epi32(x, 16))}; }
  static F16 odd(U16 x) { return {_mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)))}; }

  void sums(int64_t, const bf16* x, int64_t, const uint32_t* w, int64_t units, bool, float* out) {
    F16 left = zero(), right = zero();
    for (int64_t u = 0; u < units; u += 16) {
      F16 left_even = zero(), left_odd = zero(), right_even = zero(), right_odd = zero();
#pragma GCC unroll 16
      for (int64_t k = u; k < u + 16; k++) {
        const U16 a = same_unit(x + 2 * k), w0 = load_units(w + k * PANEL), w1 = load_units(w + k * PANEL + LANES);
        left_even = fma(even(a), even(w0), left_even);
        left_odd = fma(odd(a), odd(w0), left_odd);
        right_even = fma(even(a), even(w1), right_even);
        right_odd = fma(odd(a), odd(w1), right_odd);
      }
      left = left + (left_even + left_odd);
      right = right + (right_even + right_odd);
    }
    store(out, left);
    store(out + LANES, right);
  }
};

}  // namespace quire
