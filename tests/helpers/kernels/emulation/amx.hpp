// Tiles of AMX by their definition (Intel SDM vol. 1, ch. 18, and vol. 2): configuration, loads, stores, and products
// of bytes and of bfloat16. What would fault on a CPU ends the process with a message.
#pragma once
#include <cstdio>
#include <cstdlib>

#include "dot_products.hpp"

// Compilers define these as macros.
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbuud
#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_release
#undef _tile_stored
#undef _tile_stream_loadd
#undef _tile_zero

namespace emulated {

constexpr int TILES = 8, TILE_ROWS = 16, ROW_BYTES = 64;  // of palette 1

struct TileState {
  bool configured;
  int rows[TILES], row_bytes[TILES];
  alignas(64) uint8_t data[TILES][TILE_ROWS][ROW_BYTES];
};
inline TileState& state() {
  static thread_local TileState mine{};
  return mine;
}

inline void require(bool is, const char* what) {
  if (is) return;
  std::fprintf(stderr, "misuse of AMX tiles: %s\n", what);
  std::abort();
}
inline void require_tile(int tile) {
  require(tile >= 0 && tile < TILES, "there are eight tiles");
  require(state().configured, "tiles are not configured");
  require(state().rows[tile] > 0, "the tile has no rows");
}

inline void _tile_release() { std::memset(static_cast<void*>(&state()), 0, sizeof(TileState)); }
inline void _tile_loadconfig(const void* from) {
  uint8_t bytes[64];
  std::memcpy(bytes, from, 64);
  _tile_release();
  if (bytes[0] == 0) return;
  require(bytes[0] == 1, "the only palette is 1");
  require(bytes[1] == 0, "nothing is resumed at a row");
  for (int i = 2; i < 64; i++) require((i >= 16 && i < 32) || (i >= 48 && i < 56) || bytes[i] == 0, "reserved bytes are 0");
  TileState& to = state();
  to.configured = true;
  for (int i = 0; i < TILES; i++) {
    to.row_bytes[i] = bytes[16 + 2 * i] | bytes[17 + 2 * i] << 8, to.rows[i] = bytes[48 + i];
    require(to.rows[i] <= TILE_ROWS && to.row_bytes[i] <= ROW_BYTES, "a tile has at most 16 rows of 64 bytes");
    require((to.rows[i] == 0) == (to.row_bytes[i] == 0), "rows and their bytes are both 0, or neither");
  }
}

inline void _tile_zero(int tile) {
  require_tile(tile);
  std::memset(state().data[tile], 0, TILE_ROWS * ROW_BYTES);
}
inline void _tile_loadd(int tile, const void* from, int64_t stride) {
  _tile_zero(tile);
  for (int row = 0; row < state().rows[tile]; row++)
    std::memcpy(state().data[tile][row], static_cast<const char*>(from) + row * stride, state().row_bytes[tile]);
}
inline void _tile_stream_loadd(int tile, const void* from, int64_t stride) { _tile_loadd(tile, from, stride); }
inline void _tile_stored(int tile, void* to, int64_t stride) {
  require_tile(tile);
  for (int row = 0; row < state().rows[tile]; row++)
    std::memcpy(static_cast<char*>(to) + row * stride, state().data[tile][row], state().row_bytes[tile]);
}

// Sums [rows][16] of a product, with what one row of x and one row of w add to a row of sums.
template <class Add>
EMULATED void product(int sums, int x, int w, Add&& add) {
  require_tile(sums), require_tile(x), require_tile(w);
  TileState& s = state();
  require(sums != x && sums != w && x != w, "the tiles of a product differ");
  require(s.row_bytes[sums] % 4 == 0 && s.row_bytes[x] % 4 == 0 && s.row_bytes[w] % 4 == 0, "elements have four bytes");
  require(s.rows[sums] == s.rows[x], "sums have as many rows as x");
  require(s.row_bytes[x] / 4 == s.rows[w], "a row of x has as many elements as w has rows");
  require(s.row_bytes[sums] == s.row_bytes[w], "a row of sums is as wide as a row of w");
  for (int row = 0; row < s.rows[x]; row++)
    add(s.data[sums][row], reinterpret_cast<const int32_t*>(s.data[x][row]), s.data[w], s.rows[w]);
}

template <bool X_SIGNED, bool W_SIGNED>
inline void byte_product(int sums, int x, int w) {
  product(sums, x, w, [](uint8_t* row, const int32_t* units, const uint8_t (*columns)[ROW_BYTES], int count) {
    __m256i* to = reinterpret_cast<__m256i*>(row);
    const auto wide = [](__m256i bytes, bool odd, bool is_signed) {
      const __m256i above = odd ? bytes : _mm256_slli_epi16(bytes, 8);
      return is_signed ? _mm256_srai_epi16(above, 8) : _mm256_srli_epi16(above, 8);
    };
    for (int k = 0; k < count; k++) {
      const __m256i unit = _mm256_set1_epi32(units[k]);
      const __m256i first = wide(unit, false, X_SIGNED), second = wide(unit, true, X_SIGNED);
      for (int half = 0; half < 2; half++) {
        const __m256i column = _mm256_load_si256(reinterpret_cast<const __m256i*>(columns[k]) + half);
        const __m256i evens = _mm256_madd_epi16(first, wide(column, false, W_SIGNED));
        const __m256i odds = _mm256_madd_epi16(second, wide(column, true, W_SIGNED));
        to[half] = _mm256_add_epi32(to[half], _mm256_add_epi32(evens, odds));
      }
    }
  });
}
inline void _tile_dpbssd(int sums, int x, int w) { byte_product<true, true>(sums, x, w); }
inline void _tile_dpbsud(int sums, int x, int w) { byte_product<true, false>(sums, x, w); }
inline void _tile_dpbusd(int sums, int x, int w) { byte_product<false, true>(sums, x, w); }
inline void _tile_dpbuud(int sums, int x, int w) { byte_product<false, false>(sums, x, w); }

// Products of even and of odd elements are summed separately, from zero; then both sums are added to the tile.
inline void _tile_dpbf16ps(int sums, int x, int w) {
  product(sums, x, w, [](uint8_t* row, const int32_t* units, const uint8_t (*columns)[ROW_BYTES], int count) {
    float* to = reinterpret_cast<float*>(row);
    for (int half = 0; half < 2; half++) {
      __m256 evens = _mm256_setzero_ps(), odds = evens;
      for (int k = 0; k < count; k++) {
        const __m256i unit = _mm256_set1_epi32(units[k]);
        const __m256i column = _mm256_load_si256(reinterpret_cast<const __m256i*>(columns[k]) + half);
        evens = fma_flushed(even(unit), even(column), evens), odds = fma_flushed(odd(unit), odd(column), odds);
      }
      const __m256 both = flushed(_mm256_add_ps(evens, odds));
      _mm256_store_ps(to + 8 * half, flushed(_mm256_add_ps(flushed(_mm256_load_ps(to + 8 * half)), both)));
    }
  });
}

}  // namespace emulated
