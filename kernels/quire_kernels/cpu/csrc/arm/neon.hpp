// A register of NEON: four lanes. `arm/vec.hpp` makes sixteen lanes of four of them.
#pragma once
#include <arm_neon.h>

namespace quire {

constexpr int WIDTH = 4;
using Floats = float32x4_t;
using Ints = int32x4_t;
using Words = uint32x4_t;
using Shorts = uint16x8_t;

inline Floats same(float x) { return vdupq_n_f32(x); }
inline Words same(uint32_t x) { return vdupq_n_u32(x); }
inline Floats load_floats(const float* p) { return vld1q_f32(p); }
inline void store_floats(float* p, Floats x) { vst1q_f32(p, x); }
inline Words load_words(const uint8_t* p) { return vreinterpretq_u32_u8(vld1q_u8(p)); }
inline void store_words(uint8_t* p, Words x) { vst1q_u8(p, vreinterpretq_u8_u32(x)); }

// Sixteen or eight bits for each lane.
inline Words load_shorts(const uint16_t* p) { return vmovl_u16(vld1_u16(p)); }
inline void store_shorts(uint16_t* p, Words x) { vst1_u16(p, vmovn_u32(x)); }
inline Words load_bytes_of_lanes(const uint8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, 4);
  return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}
inline Ints load_signed_bytes(const int8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, 4);
  return vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four))));
}
inline void store_low_bytes(int8_t* p, Ints x) {
  const int16x4_t shorts = vmovn_s32(x);
  const uint32_t four = vget_lane_u32(vreinterpret_u32_s8(vmovn_s16(vcombine_s16(shorts, shorts))), 0);
  std::memcpy(p, &four, 4);
}

inline Floats fused(Floats x, Floats y, Floats z) { return vfmaq_f32(z, x, y); }
inline Floats nearest(Floats x) { return vrndnq_f32(x); }  // ties to even
inline Floats rounded_down(Floats x) { return vrndmq_f32(x); }
inline Ints nearest_ints(Floats x) { return vcvtnq_s32_f32(x); }
inline Floats floats_of_ints(Ints x) { return vcvtq_f32_s32(x); }
inline Floats floats_of_halves(Words x) { return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(x))); }

inline float sum_of(Floats x) { return vaddvq_f32(x); }
inline int32_t sum_of(Ints x) { return vaddvq_s32(x); }
inline uint32_t sum_of(Words x) { return vaddvq_u32(x); }
inline float largest_of(Floats x) { return vmaxvq_f32(x); }
inline Ints lane_numbers() { return Ints{0, 1, 2, 3}; }

// Adds to each lane the products of its four signed bytes.
inline Ints dot_signed(Ints sums, Words x, Words y) {
  const int8x16_t a = vreinterpretq_s8_u32(x), b = vreinterpretq_s8_u32(y);
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sums, a, b);
#else
  const int32x4_t lower = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
  return vaddq_s32(sums, vpaddq_s32(lower, vpaddlq_s16(vmull_high_s8(a, b))));
#endif
}

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
inline Floats dot_bf16(Floats sums, Words x, Words y) {
  return vbfdotq_f32(sums, vreinterpretq_bf16_u32(x), vreinterpretq_bf16_u32(y));
}
// bfloat16 in the lower half of each lane.
inline Words bf16_bits(Floats x) { return vmovl_u16(vreinterpret_u16_bf16(vcvt_bf16_f32(x))); }
#endif

inline Words repeated(const uint8_t* sixteen) { return load_words(sixteen); }
// Bytes of a table of sixteen.
inline Words table_bytes(Words table, Words numbers) {
  return vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(table), vreinterpretq_u8_u32(numbers)));
}

class SixteenFloats {
 public:
  explicit SixteenFloats(const float* from) {
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(from);
    for (int i = 0; i < 4; i++) all_.val[i] = vld1q_u8(bytes + 16 * i);
  }
  Floats at(Words numbers) const {
    const Words places = numbers * same(0x04040404u) + same(0x03020100u);
    return vreinterpretq_f32_u8(vqtbl4q_u8(all_, vreinterpretq_u8_u32(places)));
  }

 private:
  uint8x16x4_t all_;
};

}  // namespace quire
