// Compiles the ops for an instruction set that this machine lacks: put before every other file, with EMULATED_AMX,
// EMULATED_AVX512_VNNI, EMULATED_AVX512 or EMULATED_AVX_VNNI defined; or with EMULATED_TILES, for AMX on a machine that
// lacks nothing else of it. The emulated instructions take the names of the compiler's.
#pragma once
#include <sys/syscall.h>
#include <unistd.h>

#include "amx.hpp"

#if defined(EMULATED_AMX) || defined(EMULATED_TILES)
#define __AMX_TILE__ 1
#define __AMX_BF16__ 1
#define __AMX_INT8__ 1
#define syscall(...) 0L  // the system would refuse to enable tiles
#endif
#if defined(EMULATED_AMX)
#define __AVX512BF16__ 1
#define __AVX512VBMI__ 1
#define __AVX512VBMI2__ 1
#endif
#if defined(EMULATED_AMX) || defined(EMULATED_AVX512_VNNI)
#define __AVX512VNNI__ 1
#endif
#if defined(EMULATED_AMX) || defined(EMULATED_AVX512_VNNI) || defined(EMULATED_AVX512)
#define __AVX512F__ 1
#endif
#if defined(EMULATED_AVX_VNNI)
#define __AVXVNNI__ 1
#endif

#define _tile_dpbf16ps emulated::_tile_dpbf16ps
#define _tile_dpbssd emulated::_tile_dpbssd
#define _tile_dpbsud emulated::_tile_dpbsud
#define _tile_dpbusd emulated::_tile_dpbusd
#define _tile_dpbuud emulated::_tile_dpbuud
#define _tile_loadconfig emulated::_tile_loadconfig
#define _tile_loadd emulated::_tile_loadd
#define _tile_release emulated::_tile_release
#define _tile_stored emulated::_tile_stored
#define _tile_stream_loadd emulated::_tile_stream_loadd
#define _tile_zero emulated::_tile_zero

#if !defined(EMULATED_TILES)
#define _mm256_dpbusd_avx_epi32 emulated::_mm256_dpbusd_avx_epi32
#define _mm512_abs_epi8 emulated::_mm512_abs_epi8
#define _mm512_abs_ps emulated::_mm512_abs_ps
#define _mm512_add_epi16 emulated::_mm512_add_epi16
#define _mm512_add_epi32 emulated::_mm512_add_epi32
#define _mm512_add_pd emulated::_mm512_add_pd
#define _mm512_add_ps emulated::_mm512_add_ps
#define _mm512_and_si512 emulated::_mm512_and_si512
#define _mm512_broadcast_i32x4 emulated::_mm512_broadcast_i32x4
#define _mm512_castps512_ps256 emulated::_mm512_castps512_ps256
#define _mm512_castps_si512 emulated::_mm512_castps_si512
#define _mm512_castsi256_si512 emulated::_mm512_castsi256_si512
#define _mm512_castsi512_ps emulated::_mm512_castsi512_ps
#define _mm512_castsi512_si256 emulated::_mm512_castsi512_si256
#define _mm512_cvtepi32_epi16 emulated::_mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi8 emulated::_mm512_cvtepi32_epi8
#define _mm512_cvtepi32_ps emulated::_mm512_cvtepi32_ps
#define _mm512_cvtepi8_epi32 emulated::_mm512_cvtepi8_epi32
#define _mm512_cvtepu16_epi32 emulated::_mm512_cvtepu16_epi32
#define _mm512_cvtepu8_epi32 emulated::_mm512_cvtepu8_epi32
#define _mm512_cvtne2ps_pbh emulated::_mm512_cvtne2ps_pbh
#define _mm512_cvtneps_pbh emulated::_mm512_cvtneps_pbh
#define _mm512_cvtph_ps emulated::_mm512_cvtph_ps
#define _mm512_cvtps_epi32 emulated::_mm512_cvtps_epi32
#define _mm512_cvtps_pd emulated::_mm512_cvtps_pd
#define _mm512_div_ps emulated::_mm512_div_ps
#define _mm512_dpbf16_ps emulated::_mm512_dpbf16_ps
#define _mm512_dpbusd_epi32 emulated::_mm512_dpbusd_epi32
#define _mm512_extractf32x8_ps emulated::_mm512_extractf32x8_ps
#define _mm512_extracti64x4_epi64 emulated::_mm512_extracti64x4_epi64
#define _mm512_fixupimm_ps emulated::_mm512_fixupimm_ps
#define _mm512_fmadd_ps emulated::_mm512_fmadd_ps
#define _mm512_fnmadd_ps emulated::_mm512_fnmadd_ps
#define _mm512_inserti64x4 emulated::_mm512_inserti64x4
#define _mm512_loadu_ps emulated::_mm512_loadu_ps
#define _mm512_loadu_si512 emulated::_mm512_loadu_si512
#define _mm512_madd_epi16 emulated::_mm512_madd_epi16
#define _mm512_maddubs_epi16 emulated::_mm512_maddubs_epi16
#define _mm512_mask_blend_epi32 emulated::_mm512_mask_blend_epi32
#define _mm512_mask_blend_epi8 emulated::_mm512_mask_blend_epi8
#define _mm512_mask_blend_ps emulated::_mm512_mask_blend_ps
#define _mm512_mask_storeu_ps emulated::_mm512_mask_storeu_ps
#define _mm512_mask_sub_epi32 emulated::_mm512_mask_sub_epi32
#define _mm512_mask_sub_epi8 emulated::_mm512_mask_sub_epi8
#define _mm512_maskz_compress_ps emulated::_mm512_maskz_compress_ps
#define _mm512_maskz_loadu_ps emulated::_mm512_maskz_loadu_ps
#define _mm512_maskz_mov_ps emulated::_mm512_maskz_mov_ps
#define _mm512_max_ps emulated::_mm512_max_ps
#define _mm512_min_ps emulated::_mm512_min_ps
#define _mm512_mul_ps emulated::_mm512_mul_ps
#define _mm512_movepi8_mask emulated::_mm512_movepi8_mask
#define _mm512_test_epi32_mask emulated::_mm512_test_epi32_mask
#define _mm512_test_epi8_mask emulated::_mm512_test_epi8_mask
#define _mm512_or_si512 emulated::_mm512_or_si512
#define _mm512_packus_epi32 emulated::_mm512_packus_epi32
#define _mm512_permutexvar_epi64 emulated::_mm512_permutexvar_epi64
#define _mm512_permutexvar_epi8 emulated::_mm512_permutexvar_epi8
#define _mm512_permutexvar_ps emulated::_mm512_permutexvar_ps
#define _mm512_rcp14_ps emulated::_mm512_rcp14_ps
#define _mm512_reduce_add_epi32 emulated::_mm512_reduce_add_epi32
#define _mm512_reduce_add_pd emulated::_mm512_reduce_add_pd
#define _mm512_reduce_add_ps emulated::_mm512_reduce_add_ps
#define _mm512_reduce_max_ps emulated::_mm512_reduce_max_ps
#define _mm512_reduce_ps emulated::_mm512_reduce_ps
#define _mm512_roundscale_ps emulated::_mm512_roundscale_ps
#define _mm512_scalef_ps emulated::_mm512_scalef_ps
#define _mm512_set1_epi16 emulated::_mm512_set1_epi16
#define _mm512_set1_epi32 emulated::_mm512_set1_epi32
#define _mm512_set1_epi8 emulated::_mm512_set1_epi8
#define _mm512_set1_ps emulated::_mm512_set1_ps
#define _mm512_setzero_pd emulated::_mm512_setzero_pd
#define _mm512_setzero_si512 emulated::_mm512_setzero_si512
#define _mm512_shldi_epi16 emulated::_mm512_shldi_epi16
#define _mm512_shuffle_epi8 emulated::_mm512_shuffle_epi8
#define _mm512_shuffle_i32x4 emulated::_mm512_shuffle_i32x4
#define _mm512_slli_epi16 emulated::_mm512_slli_epi16
#define _mm512_slli_epi32 emulated::_mm512_slli_epi32
#define _mm512_srai_epi16 emulated::_mm512_srai_epi16
#define _mm512_srai_epi32 emulated::_mm512_srai_epi32
#define _mm512_srli_epi16 emulated::_mm512_srli_epi16
#define _mm512_srli_epi32 emulated::_mm512_srli_epi32
#define _mm512_storeu_ps emulated::_mm512_storeu_ps
#define _mm512_storeu_si512 emulated::_mm512_storeu_si512
#define _mm512_sub_epi32 emulated::_mm512_sub_epi32
#define _mm512_sub_epi8 emulated::_mm512_sub_epi8
#define _mm512_sub_ps emulated::_mm512_sub_ps
#define _mm512_ternarylogic_epi32 emulated::_mm512_ternarylogic_epi32
#define _mm512_unpackhi_epi32 emulated::_mm512_unpackhi_epi32
#define _mm512_unpackhi_epi64 emulated::_mm512_unpackhi_epi64
#define _mm512_unpacklo_epi32 emulated::_mm512_unpacklo_epi32
#define _mm512_unpacklo_epi64 emulated::_mm512_unpacklo_epi64
#define _mm512_xor_si512 emulated::_mm512_xor_si512
#define _mm512_cmp_ps_mask(a, b, how) emulated::compare<how>(a, b)
#define _mm512_permutex2var_epi32 emulated::_mm512_permutex2var_epi32
#define _mm512_permutex2var_epi8 emulated::_mm512_permutex2var_epi8
#endif
