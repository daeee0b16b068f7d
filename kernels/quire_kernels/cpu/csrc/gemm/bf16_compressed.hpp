// Lossless compression of bfloat16 to twelve bits per element: data that is read once per step is bound by
// bandwidth.
//
// The weights of a matrix have similar magnitudes, so of the 256 possible upper bytes (sign and seven bits of the
// exponent) sixteen nearly always suffice. A group of four vectors of units is stored as 192 bytes: the lower bytes
// of the first two, those of the other two, and four-bit codes of the upper bytes. The few values with another
// upper byte are zero there and are kept in a separate list.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "scratch.hpp"
#include "vec_quantized.hpp"

namespace quire {

constexpr int64_t GROUP_VECTORS = 4;
constexpr int64_t GROUP_ELEMENTS = GROUP_VECTORS * 2 * LANES;
constexpr int64_t GROUP_BYTES = GROUP_ELEMENTS * 3 / 2;
constexpr int64_t BYTES_AHEAD = 4096;

// Prefetches ahead: matrices are too short for the hardware prefetcher to detect the stream in time.
inline void prefetch_ahead(const void* at) {
  prefetch_l2(static_cast<const char*>(at) + BYTES_AHEAD);
}

struct Rare {
  uint32_t position;  // index of the element
  uint32_t bits;
};

// Header of a compressed matrix: upper bytes, the first of them 0, and the rare values in ascending order of
// position.
struct Codebook {
  uint8_t upper[16];
  int64_t num_rare;
  Rare rare[1];

  int64_t bytes() const { return (24 + num_rare * static_cast<int64_t>(sizeof(Rare)) + 63) / 64 * 64; }
};

// Location of a group's element: its lower byte, and the byte and bit offset of its code. Elements of the first
// vector of a pair share 16 bits with those of the second; for the codes the order is reversed.
struct CompressedOffset {
  int64_t byte, number;
  int shift;
  explicit CompressedOffset(int64_t element) {
    const int64_t vector = element / 32, i = element % 32, second = vector % 2;
    byte = vector / 2 * 64 + 2 * i + second, number = 128 + 2 * i + 1 - second, shift = vector / 2 * 4;
  }
};

#if defined(__AVX512F__)
class UpperBytes {
 public:
  explicit UpperBytes(const uint8_t* upper)
      : all_(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(upper)))) {}

  // Decompresses the vectors of a group.
  void restore(const uint8_t* from, U16 (&units)[GROUP_VECTORS]) const {
    const __m512i numbers = _mm512_loadu_si512(from + 128);
    restore_two(_mm512_loadu_si512(from), of(numbers), units[0], units[1]);
    restore_two(_mm512_loadu_si512(from + 64), of(_mm512_srli_epi16(numbers, 4)), units[2], units[3]);
  }

 private:
  __m512i all_;

  // Upper bytes for the codes in the lower four bits of each byte.
  __m512i of(__m512i numbers) const {
#if defined(__AVX512VBMI__)
    return _mm512_permutexvar_epi8(numbers, all_);  // four copies of the table: the two higher bits do not matter
#else
    return _mm512_shuffle_epi8(all_, _mm512_and_si512(numbers, _mm512_set1_epi8(15)));
#endif
  }
  static void restore_two(__m512i lower, __m512i upper, U16& first, U16& second) {
    first = _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, lower, upper);
#if defined(__AVX512VBMI2__)
    second = _mm512_shldi_epi16(upper, lower, 8);
#else
    second = _mm512_or_si512(_mm512_slli_epi16(upper, 8), _mm512_srli_epi16(lower, 8));
#endif
  }
};
#elif defined(__aarch64__)
class UpperBytes {
 public:
  explicit UpperBytes(const uint8_t* upper) : all_(byte_table(upper)) {}

  void restore(const uint8_t* from, U16 (&units)[GROUP_VECTORS]) const {
    const U16 numbers = load_units(from + 128);
    restore_two(load_units(from), looked_up(all_, masked(numbers, 15)), units[0], units[1]);
    restore_two(load_units(from + 64), looked_up(all_, masked(shifted<-4>(numbers), 15)), units[2], units[3]);
  }

 private:
  U16 all_;

  static void restore_two(U16 lower, U16 upper, U16& first, U16& second) {
    first = merged(masked_words(lower, 0x00ff00ff), masked_words(upper, 0xff00ff00));
    second = merged(shifted<8>(upper), shifted<-8>(lower));
  }
};
#else
class UpperBytes {
 public:
  explicit UpperBytes(const uint8_t* upper)
      : all_(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(upper)))) {}

  void restore(const uint8_t* from, U16 (&units)[GROUP_VECTORS]) const {
#pragma GCC unroll 2
    for (int pair = 0; pair < 2; pair++) {
      const U16 first = restore_part(from, pair, 0), second = restore_part(from, pair, 1);
      units[2 * pair] = {first.a, second.a}, units[2 * pair + 1] = {first.b, second.b};
    }
  }
  // Half `part` of each vector of a pair: 8 lanes of the first vector, and those of the second.
  U16 restore_part(const uint8_t* from, int pair, int part) const {
    const __m256i* at = reinterpret_cast<const __m256i*>(from) + part;
    const __m256i lower = _mm256_loadu_si256(at + 2 * pair), numbers = _mm256_loadu_si256(at + 4);
    const __m256i upper = of(pair ? _mm256_srli_epi16(numbers, 4) : numbers);
    return {_mm256_blendv_epi8(lower, upper, _mm256_set1_epi16(-256)),
            _mm256_or_si256(_mm256_slli_epi16(upper, 8), _mm256_srli_epi16(lower, 8))};
  }

 private:
  __m256i all_;

  __m256i of(__m256i numbers) const {
    return _mm256_shuffle_epi8(all_, _mm256_and_si256(numbers, _mm256_set1_epi8(15)));
  }
};
#endif

// Vectors of units, compressed or not. If compressed, reads and skips must be multiples of GROUP_VECTORS.
struct Compressed {
  const void* at;
  const Codebook* book;  // null: not compressed

  const uint32_t* units() const { return static_cast<const uint32_t*>(at); }  // only if not compressed
};

constexpr uint8_t NO_UPPER[16] = {};

// Reads the vectors of a matrix in order, a few at a time, so that reading overlaps with computing.
class SequentialReader {
 public:
  struct Group {
    U16 vectors[GROUP_VECTORS];

    void store(uint32_t* units) const {
#pragma GCC unroll 4
      for (int64_t v = 0; v < GROUP_VECTORS; v++) store_units(units + v * LANES, vectors[v]);
    }
  };

  explicit SequentialReader(const Compressed& matrix, int64_t first = 0)
      : upper_(matrix.book ? matrix.book->upper : NO_UPPER),
        at_(static_cast<const uint8_t*>(matrix.at)),
        book_(matrix.book),
        element_(first * 2 * LANES) {
    at_ += book_ ? first / GROUP_VECTORS * GROUP_BYTES : first * LANES * 4;
    if (!book_) return;
    end_ = book_->rare + book_->num_rare;
    const auto before = [](const Rare& rare, int64_t position) { return rare.position < position; };
    rare_ = std::lower_bound(book_->rare, end_, element_, before);
    find_next();
  }

  // The next GROUP_VECTORS vectors.
  Group group() {
    const uint8_t* from = at_;
    if (!book_) {
      at_ += 4 * LANES * GROUP_VECTORS;
      for (const uint8_t* line = from; line < at_; line += 64) prefetch_ahead(line);
      return loaded(reinterpret_cast<const uint32_t*>(from));
    }
    at_ += GROUP_BYTES;
    for (const uint8_t* line = from; line < at_; line += 64) prefetch_ahead(line);
    Group group;
    upper_.restore(from, group.vectors);
    element_ += GROUP_ELEMENTS;
    if (__builtin_expect(next_ >= element_, 1)) return group;
    return with_rare(group);
  }

  // The next `count` vectors: decompressed to `buffer` if they are compressed, else in position and without
  // prefetching.
  const uint32_t* decompress(int64_t count, uint32_t* buffer) {
    const uint8_t* from = at_;
    at_ += book_ ? count / GROUP_VECTORS * GROUP_BYTES : count * LANES * 4;
    if (!book_) return reinterpret_cast<const uint32_t*>(from);
    for (uint32_t* to = buffer; from < at_; from += GROUP_BYTES, to += GROUP_VECTORS * LANES) {
      for (int64_t line = 0; line < GROUP_BYTES; line += 64) prefetch_ahead(from + line);
      Group group;
      upper_.restore(from, group.vectors);
      group.store(to);
    }
    element_ += count * 2 * LANES;
    put_rare(reinterpret_cast<bf16*>(buffer) + count * 2 * LANES);
    return buffer;
  }

 private:
  static Group loaded(const uint32_t* units) {
    Group group;
#pragma GCC unroll 4
    for (int64_t v = 0; v < GROUP_VECTORS; v++) group.vectors[v] = load_units(units + v * LANES);
    return group;
  }

  Group with_rare(const Group& group) {
    alignas(64) uint32_t units[GROUP_VECTORS * LANES];
    std::memcpy(units, &group, sizeof units);
    put_rare(reinterpret_cast<bf16*>(units + GROUP_VECTORS * LANES));
    return loaded(units);
  }

  // Inserts the rare values before `end`, the end of the decompressed elements.
  void put_rare(bf16* end) {
    for (; rare_ < end_ && rare_->position < element_; rare_++)
      end[rare_->position - element_].bits = static_cast<uint16_t>(rare_->bits);
    find_next();
  }
  void find_next() { next_ = rare_ == end_ ? INT64_MAX : rare_->position; }

  UpperBytes upper_;
  const uint8_t* at_;
  const Codebook* book_;
  int64_t element_;
  int64_t next_ = INT64_MAX;  // position of the next rare value
  const Rare *rare_ = nullptr, *end_ = nullptr;
};

}  // namespace quire
