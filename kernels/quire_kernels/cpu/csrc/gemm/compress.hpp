// Compresses bfloat16 numbers to what `gemm/bf16_compressed.hpp` reads.
#pragma once
#include "gemm/bf16_compressed.hpp"

namespace quire {

inline void convert(float from, float& to) { to = from; }
inline void convert(bf16 from, float& to) { to = to_float(from); }
inline void convert(bf16 from, bf16& to) { to = from; }
inline void convert(float from, bf16& to) {  // round to nearest even; for finite numbers only
  uint32_t bits;
  std::memcpy(&bits, &from, 4);
  to.bits = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Adds the number of occurrences of each upper byte, after rounding to bfloat16, to counts[256].
template <class From>
void count_upper_bytes(const From* values, int64_t count, int64_t* counts) {
  for (int64_t i = 0; i < count; i++) {
    bf16 value;
    convert(values[i], value);
    counts[value.bits >> 8]++;
  }
}

// Chooses the upper bytes of a code book, 0 and the 15 most frequent others; returns the number of rare values.
inline int64_t choose_upper_bytes(const int64_t* counts, uint8_t* upper) {
  uint8_t others[255];
  for (int i = 0; i < 255; i++) others[i] = static_cast<uint8_t>(i + 1);
  const auto before = [&](uint8_t a, uint8_t b) { return counts[a] > counts[b] || (counts[a] == counts[b] && a < b); };
  std::partial_sort(others, others + 15, others + 255, before);
  upper[0] = 0;
  std::copy_n(others, 15, upper + 1);
  int64_t rare = 0;
  for (int i = 15; i < 255; i++) rare += counts[others[i]];
  return rare;
}

constexpr uint8_t NO_CODE = 16;  // of an upper byte that is not in the code book
constexpr int64_t GROUP_HALF = GROUP_ELEMENTS / 2;

#if defined(__AVX512VBMI__)
// Finds codes in a table of all 256 upper bytes.
class UpperCodes {
 public:
  explicit UpperCodes(const uint8_t* upper) {
    alignas(64) uint8_t table[256];
    std::fill_n(table, 256, NO_CODE);
    for (int k = 15; k >= 0; k--) table[upper[k]] = static_cast<uint8_t>(k);
    for (int i = 0; i < 4; i++) table_[i] = _mm512_loadu_si512(table + 64 * i);
  }

  // Writes the lower bytes of a group to `to`, and the code of each element to `numbers`; returns whether all have one.
  bool split(const bf16* elements, uint8_t* to, uint8_t* numbers) const {
    __m512i codes[2];
    for (int half = 0; half < 2; half++) {
      const __m512i a = _mm512_loadu_si512(elements + half * GROUP_HALF);
      const __m512i b = _mm512_loadu_si512(elements + half * GROUP_HALF + 2 * LANES);
      constexpr __mmask64 UPPER = 0xaaaaaaaaaaaaaaaa;
      _mm512_storeu_si512(to + 64 * half, _mm512_mask_blend_epi8(UPPER, a, _mm512_slli_epi16(b, 8)));
      const __m512i upper = _mm512_mask_blend_epi8(UPPER, _mm512_srli_epi16(b, 8), a);
      const __m512i low = _mm512_permutex2var_epi8(table_[0], upper, table_[1]);
      const __m512i high = _mm512_permutex2var_epi8(table_[2], upper, table_[3]);
      codes[half] = _mm512_mask_blend_epi8(_mm512_movepi8_mask(upper), low, high);
      _mm512_storeu_si512(numbers + half * GROUP_HALF, codes[half]);
    }
    return _mm512_test_epi8_mask(_mm512_or_si512(codes[0], codes[1]), _mm512_set1_epi8(NO_CODE)) == 0;
  }

 private:
  __m512i table_[4];
};
#else
class UpperCodes {
 public:
  explicit UpperCodes(const uint8_t* upper) : upper_(upper) {}

  bool split(const bf16* elements, uint8_t* to, uint8_t* numbers) const {
    // loops of fixed length over bytes, of which a compiler makes vector instructions
    constexpr int64_t VECTOR = 2 * LANES;
    alignas(64) uint16_t lower[GROUP_HALF], pairs[GROUP_HALF];
    alignas(64) uint8_t uppers[GROUP_ELEMENTS];
    for (int64_t half = 0; half < 2; half++)
      for (int64_t e = 0; e < VECTOR; e++) {
        const bf16* at = elements + half * GROUP_HALF + e;
        const uint16_t a = at[0].bits, b = at[VECTOR].bits;
        lower[half * VECTOR + e] = static_cast<uint16_t>((a & 255) | b << 8);
        pairs[half * VECTOR + e] = static_cast<uint16_t>((a & 0xff00) | b >> 8);
      }
    std::memcpy(uppers, pairs, sizeof uppers);
    std::fill_n(numbers, GROUP_ELEMENTS, NO_CODE);
    for (int k = 15; k >= 0; k--)
      for (int64_t e = 0; e < GROUP_ELEMENTS; e++) numbers[e] = uppers[e] == upper_[k] ? static_cast<uint8_t>(k) : numbers[e];
    std::memcpy(to, lower, sizeof lower);
    uint8_t any = 0;
    for (int64_t e = 0; e < GROUP_ELEMENTS; e++) any |= numbers[e];
    return !(any & NO_CODE);
  }

 private:
  const uint8_t* upper_;
};
#endif

// Compresses `elements` (a multiple of GROUP_ELEMENTS, fewer than 2^32) with these upper bytes. Returns the number
// of rare values.
inline int64_t compress(const bf16* elements, int64_t count, const uint8_t* upper, Rare* rare, uint8_t* to) {
  const UpperCodes codes(upper);
  const Rare* first = rare;
  for (int64_t i = 0; i < count; i += GROUP_ELEMENTS, to += GROUP_BYTES) {
    alignas(64) uint8_t numbers[GROUP_ELEMENTS];
    const bool all = codes.split(elements + i, to, numbers);
    for (int64_t e = 0; !all && e < GROUP_ELEMENTS; e++) {
      const CompressedOffset position(e);
      uint8_t& number = numbers[position.number - GROUP_ELEMENTS + position.shift / 4 * GROUP_HALF];
      if (number != NO_CODE) continue;
      to[position.byte] = number = 0;
      *rare++ = {static_cast<uint32_t>(i + e), elements[i + e].bits};
    }
    for (int64_t e = 0; e < GROUP_HALF; e++)
      to[GROUP_ELEMENTS + e] = static_cast<uint8_t>(numbers[e] | numbers[GROUP_HALF + e] << 4);
  }
  return rare - first;
}

// The number of values without one of these upper bytes.
inline int64_t count_rare(const bf16* values, int64_t count, const uint8_t* upper) {
  constexpr int64_t AT_ONCE = 64;
  int64_t common = 0;
  for (int64_t i = 0; i < count; i += AT_ONCE) {
    const int64_t here = std::min(AT_ONCE, count - i);
    uint8_t uppers[AT_ONCE], known[AT_ONCE] = {};
    if (here == AT_ONCE)
      for (int64_t e = 0; e < AT_ONCE; e++) uppers[e] = static_cast<uint8_t>(values[i + e].bits >> 8);
    else
      for (int64_t e = 0; e < here; e++) uppers[e] = static_cast<uint8_t>(values[i + e].bits >> 8);
    for (int k = 0; k < 16; k++)
      for (int64_t e = 0; e < AT_ONCE; e++) known[e] |= static_cast<uint8_t>(uppers[e] == upper[k]);
    int64_t sum = 0;
    for (int64_t e = 0; e < here; e++) sum += known[e];
    common += sum;
  }
  return count - common;
}

}  // namespace quire
