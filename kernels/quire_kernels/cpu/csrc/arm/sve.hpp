// A register of SVE whose length is known when this is compiled (-msve-vector-bits): eight or sixteen lanes.
#pragma once
#include <arm_sve.h>

namespace quire {

constexpr int WIDTH = __ARM_FEATURE_SVE_BITS / 32;
static_assert(WIDTH == 8 || WIDTH == 16, "registers of 256 or 512 bits");
using Floats = svfloat32_t __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
using Ints = svint32_t __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
using Words = svuint32_t __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
using Shorts = svuint16_t __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));

inline svbool_t every() { return svptrue_b32(); }

inline Floats same(float x) { return svdup_f32(x); }
inline Words same(uint32_t x) { return svdup_u32(x); }
inline Floats load_floats(const float* p) { return svld1_f32(every(), p); }
inline void store_floats(float* p, Floats x) { svst1_f32(every(), p, x); }
inline Words load_words(const uint8_t* p) { return svreinterpret_u32_u8(svld1_u8(svptrue_b8(), p)); }
inline void store_words(uint8_t* p, Words x) { svst1_u8(svptrue_b8(), p, svreinterpret_u8_u32(x)); }

inline Words load_shorts(const uint16_t* p) { return svld1uh_u32(every(), p); }
inline void store_shorts(uint16_t* p, Words x) { svst1h_u32(every(), p, x); }
inline Words load_bytes_of_lanes(const uint8_t* p) { return svld1ub_u32(every(), p); }
inline Ints load_signed_bytes(const int8_t* p) { return svld1sb_s32(every(), p); }
inline void store_low_bytes(int8_t* p, Ints x) { svst1b_s32(every(), p, x); }

inline Floats fused(Floats x, Floats y, Floats z) { return svmla_f32_x(every(), z, x, y); }
inline Floats nearest(Floats x) { return svrintn_f32_x(every(), x); }
inline Floats rounded_down(Floats x) { return svrintm_f32_x(every(), x); }
inline Ints nearest_ints(Floats x) { return svcvt_s32_f32_x(every(), nearest(x)); }
inline Floats floats_of_ints(Ints x) { return svcvt_f32_s32_x(every(), x); }
inline Floats floats_of_halves(Words x) { return svcvt_f32_f16_x(every(), svreinterpret_f16_u32(x)); }

inline float sum_of(Floats x) { return svaddv_f32(every(), x); }
inline int32_t sum_of(Ints x) { return static_cast<int32_t>(svaddv_s32(every(), x)); }
inline uint32_t sum_of(Words x) { return static_cast<uint32_t>(svaddv_u32(every(), x)); }
inline float largest_of(Floats x) { return svmaxv_f32(every(), x); }
inline Ints lane_numbers() { return svindex_s32(0, 1); }

inline Ints dot_signed(Ints sums, Words x, Words y) {
  return svdot_s32(sums, svreinterpret_s8_u32(x), svreinterpret_s8_u32(y));
}

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
inline Floats dot_bf16(Floats sums, Words x, Words y) {
  return svbfdot_f32(sums, svreinterpret_bf16_u32(x), svreinterpret_bf16_u32(y));
}
inline Words bf16_bits(Floats x) {
  return svand_n_u32_x(every(), svreinterpret_u32_bf16(svcvt_bf16_f32_x(every(), x)), 0xffff);
}
#endif

inline Words repeated(const uint8_t* sixteen) { return svreinterpret_u32_u8(svld1rq_u8(svptrue_b8(), sixteen)); }
inline Words table_bytes(Words table, Words numbers) {
  return svreinterpret_u32_u8(svtbl_u8(svreinterpret_u8_u32(table), svreinterpret_u8_u32(numbers)));
}

class SixteenFloats {
 public:
  explicit SixteenFloats(const float* from) : lower_(load_floats(from)), upper_(load_floats(from + 16 - WIDTH)) {}
  Floats at(Words numbers) const {  // 0 for a number beyond the register
    const svfloat32_t found = svtbl_f32(lower_, numbers);
    if constexpr (WIDTH == 16) return found;
    const svuint32_t bits = svreinterpret_u32_f32(svtbl_f32(upper_, svsub_n_u32_x(every(), numbers, 8)));
    return svreinterpret_f32_u32(svorr_u32_x(every(), svreinterpret_u32_f32(found), bits));
  }

 private:
  Floats lower_, upper_;
};

}  // namespace quire
