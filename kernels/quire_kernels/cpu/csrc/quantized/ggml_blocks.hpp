// Unpacks blocks of ggml's quantized types (ggml/src/ggml-common.h and ggml-quants.c of llama.cpp) into one byte for
// each code, and a scale and an offset for each group. `quire_models/gguf/weights/unpack.py` is the reference.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "machine.hpp"

namespace quire {

enum class BlockType : int32_t { q4_0, q4_1, q5_0, q5_1, q8_0, iq4_nl, mxfp4, iq4_xs, q2_k, q3_k, q4_k, q5_k, q6_k };

// Blocks that are unpacked, count of them. offsets: not written by types that have none.
struct BlockCodes {
  const uint8_t* blocks;
  int64_t count;
  uint8_t* codes;
  float *scales, *offsets;
};

inline float half_at(const uint8_t* from) {
  uint16_t bits;
  std::memcpy(&bits, from, 2);
  return from_half(bits);
}
inline uint32_t word_at(const uint8_t* from) {
  uint32_t word;
  std::memcpy(&word, from, 4);
  return word;
}

// Groups of COUNT codes: the low halves of COUNT bytes, then their high halves.
template <int COUNT>
inline void put_nibbles(const uint8_t* from, uint8_t* codes) {
  for (int i = 0; i < COUNT; i++) codes[i] = from[i] & 15;
  for (int i = 0; i < COUNT; i++) codes[COUNT + i] = static_cast<uint8_t>(from[i] >> 4);
}

// Groups of 32 codes from 32 bytes: their lowest BITS bits, the next, …; shifted up by TO, and added to the codes.
template <int BITS, int TO>
inline void add_fields(const uint8_t* from, uint8_t* codes) {
  for (int group = 0; group < 8 / BITS; group++)
    for (int i = 0; i < 32; i++)
      codes[32 * group + i] = static_cast<uint8_t>(codes[32 * group + i] | (from[i] >> group * BITS & ((1 << BITS) - 1)) << TO);
}

// 32 codes from a bit each: their bit 4.
inline void add_fifth_bits(const uint8_t* from, uint8_t* codes) {
#if defined(__AVX2__)
  const __m256i bytes = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bits = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int32_t>(word_at(from))), bytes);
  const __m256i found = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bits), bits);
  auto* const to = reinterpret_cast<__m256i*>(codes);
  _mm256_storeu_si256(to, _mm256_or_si256(_mm256_loadu_si256(to), _mm256_and_si256(found, _mm256_set1_epi8(16))));
#else
  for (int i = 0; i < 32; i++) codes[i] = static_cast<uint8_t>(codes[i] | (from[i / 8] >> i % 8 & 1) << 4);
#endif
}

// Eight scales and minima of six bits in twelve bytes.
inline void put_scales_of_six_bits(const uint8_t* from, float d, float least, float* scales, float* offsets) {
  const uint32_t first = word_at(from), second = word_at(from + 4), rest = word_at(from + 8);
  constexpr uint32_t LOW = 0x3F3F3F3F, HIGH = 0x30303030, NIBBLE = 0x0F0F0F0F;
  const uint32_t s[2] = {first & LOW, (rest & NIBBLE) | (first >> 2 & HIGH)};
  const uint32_t m[2] = {second & LOW, (rest >> 4 & NIBBLE) | (second >> 2 & HIGH)};
  for (int i = 0; i < 8; i++) {
    scales[i] = d * static_cast<float>(s[i / 4] >> 8 * (i % 4) & 255);
    offsets[i] = -least * static_cast<float>(m[i / 4] >> 8 * (i % 4) & 255);
  }
}

// A type: bytes, codes and groups of a block, whether it has offsets, and how a block is unpacked.
template <BlockType>
struct StoredBlock;

template <int BYTES, int CODES, int GROUPS, bool OFFSETS>
struct BlockSizes {
  static constexpr int bytes = BYTES, codes = CODES, groups = GROUPS;
  static constexpr bool offsets = OFFSETS;
};

template <>
struct StoredBlock<BlockType::q4_0> : BlockSizes<18, 32, 1, false> {
  static void unpack(const uint8_t* from, uint8_t* codes, float* scales, float*) {
    scales[0] = half_at(from);
    put_nibbles<16>(from + 2, codes);
  }
};
template <>
struct StoredBlock<BlockType::iq4_nl> : StoredBlock<BlockType::q4_0> {};
template <>
struct StoredBlock<BlockType::q4_1> : BlockSizes<20, 32, 1, true> {
  static void unpack(const uint8_t* from, uint8_t* codes, float* scales, float* offsets) {
    scales[0] = half_at(from), offsets[0] = half_at(from + 2);
    put_nibbles<16>(from + 4, codes);
  }
};
template <>
struct StoredBlock<BlockType::q5_0> : BlockSizes<22, 32, 1, false> {
  static void unpack(const uint8_t* from, uint8_t* codes, float* scales, float*) {
    scales[0] = half_at(from);
    put_nibbles<16>(from + 6, codes);
    add_fifth_bits(from + 2, codes);
  }
};
template <>
struct StoredBlock<BlockType::q5_1> : BlockSizes<24, 32, 1, true> {
  static void unpack(const uint8_t* from, uint8_t* codes, float* scales, float* offsets) {
    scales[0] = half_at(from), offsets[0] = half_at(from + 2);
    put_nibbles<16>(from + 8, codes);
    add_fifth_bits(from + 4, codes);
  }
};
template <>
struct StoredBlock<BlockType::q8_0> : BlockSizes<34, 32, 1, false> {
  static void unpack(const uint8_t* from, uint8_t* codes, float* scales, float*) {
    scales[0] = half_at(from);
    for (int i = 0; i < 32; i++) codes[i] = from[2 + i] ^ 0x80;  // from two's complement to codes with the zero 128
  }
};
template <>
struct StoredBlock<BlockType::mxfp4> : BlockSizes<17, 32, 1, false> {
  static void unpack(const uint8_t* from, uint8_t* codes, float* scales, float*) {
    scales[0] = std::ldexp(1.0f, from[0] - 128);  // half of 2 ** (e - 127)
    put_nibbles<16>(from + 1, codes);
  }
};
template <>
struct StoredBlock<BlockType::iq4_xs> : BlockSizes<136, 256, 8, false> {
  static void unpack(const uint8_t* from, uint8_t* codes, float* scales, float*) {
    const float d = half_at(from);
    for (int g = 0; g < 8; g++) {
      const int low = from[4 + g / 2] >> 4 * (g % 2) & 15, high = from[2 + g / 4] >> 2 * (g % 4) & 3;
      scales[g] = d * static_cast<float>((low | high << 4) - 32);
      put_nibbles<16>(from + 8 + 16 * g, codes + 32 * g);
    }
  }
};
template <>
struct StoredBlock<BlockType::q2_k> : BlockSizes<84, 256, 16, true> {
  static void unpack(const uint8_t* from, uint8_t* codes, float* scales, float* offsets) {
    const float d = half_at(from + 80), least = half_at(from + 82);
    for (int g = 0; g < 16; g++) {
      scales[g] = d * static_cast<float>(from[g] & 15);
      offsets[g] = -least * static_cast<float>(from[g] >> 4);
    }
    std::memset(codes, 0, 256);
    add_fields<2, 0>(from + 16, codes), add_fields<2, 0>(from + 48, codes + 128);
  }
};
template <>
struct StoredBlock<BlockType::q3_k> : BlockSizes<110, 256, 16, false> {
  static void unpack(const uint8_t* from, uint8_t* codes, float* scales, float*) {
    const uint8_t *low = from + 96, *high = from + 104;
    const float d = half_at(from + 108);
    for (int g = 0; g < 16; g++) {
      const int scale = (low[g % 8] >> 4 * (g / 8) & 15) | (high[g % 4] >> 2 * (g / 4) & 3) << 4;
      scales[g] = d * static_cast<float>(scale - 32);
    }
    std::memset(codes, 0, 256);
    add_fields<2, 0>(from + 32, codes), add_fields<2, 0>(from + 64, codes + 128);
    add_fields<1, 2>(from, codes);
  }
};
template <>
struct StoredBlock<BlockType::q4_k> : BlockSizes<144, 256, 8, true> {
  static void unpack(const uint8_t* from, uint8_t* codes, float* scales, float* offsets) {
    put_scales_of_six_bits(from + 4, half_at(from), half_at(from + 2), scales, offsets);
    for (int part = 0; part < 4; part++) put_nibbles<32>(from + 16 + 32 * part, codes + 64 * part);
  }
};
template <>
struct StoredBlock<BlockType::q5_k> : BlockSizes<176, 256, 8, true> {
  static void unpack(const uint8_t* from, uint8_t* codes, float* scales, float* offsets) {
    put_scales_of_six_bits(from + 4, half_at(from), half_at(from + 2), scales, offsets);
    for (int part = 0; part < 4; part++) put_nibbles<32>(from + 48 + 32 * part, codes + 64 * part);
    add_fields<1, 4>(from + 16, codes);
  }
};
template <>
struct StoredBlock<BlockType::q6_k> : BlockSizes<210, 256, 16, false> {
  static void unpack(const uint8_t* from, uint8_t* codes, float* scales, float*) {
    const float d = half_at(from + 208);
    for (int g = 0; g < 16; g++) scales[g] = d * static_cast<float>(static_cast<int8_t>(from[192 + g]));
    put_nibbles<64>(from, codes), put_nibbles<64>(from + 64, codes + 128);
    add_fields<2, 4>(from + 128, codes), add_fields<2, 4>(from + 160, codes + 128);
  }
};

// Returns whether all scales (1) and all offsets (2) are finite, as a sum.
template <class Of>
int32_t unpack_blocks(const BlockCodes& to) {
  float scales = 0.0f, offsets = 0.0f;  // NaN as soon as one is not finite
  for (int64_t i = 0; i < to.count; i++) {
    float *s = to.scales + i * Of::groups, *o = to.offsets + i * Of::groups;
    Of::unpack(to.blocks + i * Of::bytes, to.codes + i * Of::codes, s, o);
    for (int g = 0; g < Of::groups; g++) {
      scales += s[g] * 0.0f;
      if constexpr (Of::offsets) offsets += o[g] * 0.0f;
    }
  }
  return (scales == 0.0f ? 1 : 0) + (offsets == 0.0f ? 2 : 0);
}

// Calls work(block), with the `StoredBlock` of a type.
template <class Work>
int32_t with_block(BlockType type, Work&& work) {
  switch (type) {
    case BlockType::q4_0: return work(StoredBlock<BlockType::q4_0>{});
    case BlockType::q4_1: return work(StoredBlock<BlockType::q4_1>{});
    case BlockType::q5_0: return work(StoredBlock<BlockType::q5_0>{});
    case BlockType::q5_1: return work(StoredBlock<BlockType::q5_1>{});
    case BlockType::q8_0: return work(StoredBlock<BlockType::q8_0>{});
    case BlockType::iq4_nl: return work(StoredBlock<BlockType::iq4_nl>{});
    case BlockType::mxfp4: return work(StoredBlock<BlockType::mxfp4>{});
    case BlockType::iq4_xs: return work(StoredBlock<BlockType::iq4_xs>{});
    case BlockType::q2_k: return work(StoredBlock<BlockType::q2_k>{});
    case BlockType::q3_k: return work(StoredBlock<BlockType::q3_k>{});
    case BlockType::q4_k: return work(StoredBlock<BlockType::q4_k>{});
    case BlockType::q5_k: return work(StoredBlock<BlockType::q5_k>{});
    case BlockType::q6_k: return work(StoredBlock<BlockType::q6_k>{});
  }
  return 0;
}

inline bool has_offsets(BlockType type) {
  return with_block(type, [](auto block) { return static_cast<int32_t>(decltype(block)::offsets); }) != 0;
}
inline int32_t unpack_blocks(BlockType type, const BlockCodes& to) {
  return with_block(type, [&](auto block) { return unpack_blocks<decltype(block)>(to); });
}

}  // namespace quire
