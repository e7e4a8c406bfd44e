#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "cuda/symmetric/layouts.hpp"

// The asynchronous product that a warpgroup computes: 64 rows of A by N columns, with a depth of
// 16. Both operands are in shared memory. Source: PTX ISA 9.0, wgmma.mma_async.

namespace muonrt::cuda {

#define MUONRT_SUMS_32                                                                     \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "

#define MUONRT_SUMS_64                                                                     \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "  \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "  \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "

#define MUONRT_SUMS_96                                                                    \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "     \
  "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, " \
  "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, " \
  "%69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, " \
  "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "

#define MUONRT_SUMS_128                                                                    \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "  \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "  \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, "  \
  "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, "  \
  "%87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, "    \
  "%103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, "   \
  "%117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "

#define MUONRT_OUT_8(i)                                                                      \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), \
      "+f"(sums[i + 5]), "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define MUONRT_OUT_32 MUONRT_OUT_8(0), MUONRT_OUT_8(8), MUONRT_OUT_8(16), MUONRT_OUT_8(24)
#define MUONRT_OUT_64                                                                     \
  MUONRT_OUT_8(0), MUONRT_OUT_8(8), MUONRT_OUT_8(16), MUONRT_OUT_8(24), MUONRT_OUT_8(32), \
      MUONRT_OUT_8(40), MUONRT_OUT_8(48), MUONRT_OUT_8(56)
#define MUONRT_OUT_96 \
  MUONRT_OUT_64, MUONRT_OUT_8(64), MUONRT_OUT_8(72), MUONRT_OUT_8(80), MUONRT_OUT_8(88)
#define MUONRT_OUT_128 \
  MUONRT_OUT_96, MUONRT_OUT_8(96), MUONRT_OUT_8(104), MUONRT_OUT_8(112), MUONRT_OUT_8(120)

// The operands that follow the sums are the descriptors of A and B, whether to add to the sums, and
// whether B is MN-major.
#define MUONRT_WGMMA(shape_and_types, list, outputs, a_at, b_at, adds_at, mn_at)             \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " adds_at                             \
               ", 0;\nwgmma.mma_async.sync.aligned." shape_and_types " " list a_at ", " b_at \
               ", adds, 1, 1, 0, " mn_at ";\n}\n"                                            \
               : outputs                                                                     \
               : "l"(a), "l"(b), "r"(adds ? 1 : 0), "n"(kB == Major::kMN ? 1 : 0))

/// Computes sums = A B^T with 64 rows of A and kCols rows of B, or sums = A B with kCols columns of
/// an MN-major B. If `adds` is set, adds the product to the previous sums. The sums are in the
/// order of wgmma_c. kCols is 64, 128, 192 or 256; the first kCols / 2 sums are used.
/// @param a, b  results of wgmma_descriptor, or wgmma_descriptor_mn.
template <DType kElement, int kCols, Major kB = Major::kK, int kSums>
__device__ inline void wgmma(float (&sums)[kSums], uint64_t a, uint64_t b, bool adds) {
  static_assert((kCols == 64 || kCols == 128 || kCols == 192 || kCols == 256) &&
                kSums >= kCols / 2);
  constexpr bool kBf16 = kElement == DType::kBF16;
  if constexpr (kBf16 && kCols == 256) {
    MUONRT_WGMMA("m64n256k16.f32.bf16.bf16", MUONRT_SUMS_128, MUONRT_OUT_128, "%128", "%129",
                 "%130", "%131");
  } else if constexpr (kCols == 256) {
    MUONRT_WGMMA("m64n256k16.f32.f16.f16", MUONRT_SUMS_128, MUONRT_OUT_128, "%128", "%129", "%130",
                 "%131");
  } else if constexpr (kBf16 && kCols == 192) {
    MUONRT_WGMMA("m64n192k16.f32.bf16.bf16", MUONRT_SUMS_96, MUONRT_OUT_96, "%96", "%97", "%98",
                 "%99");
  } else if constexpr (kCols == 192) {
    MUONRT_WGMMA("m64n192k16.f32.f16.f16", MUONRT_SUMS_96, MUONRT_OUT_96, "%96", "%97", "%98",
                 "%99");
  } else if constexpr (kBf16 && kCols == 64) {
    MUONRT_WGMMA("m64n64k16.f32.bf16.bf16", MUONRT_SUMS_32, MUONRT_OUT_32, "%32", "%33", "%34",
                 "%35");
  } else if constexpr (kCols == 64) {
    MUONRT_WGMMA("m64n64k16.f32.f16.f16", MUONRT_SUMS_32, MUONRT_OUT_32, "%32", "%33", "%34",
                 "%35");
  } else if constexpr (kBf16) {
    MUONRT_WGMMA("m64n128k16.f32.bf16.bf16", MUONRT_SUMS_64, MUONRT_OUT_64, "%64", "%65", "%66",
                 "%67");
  } else {
    MUONRT_WGMMA("m64n128k16.f32.f16.f16", MUONRT_SUMS_64, MUONRT_OUT_64, "%64", "%65", "%66",
                 "%67");
  }
}

#undef MUONRT_WGMMA
#undef MUONRT_OUT_128
#undef MUONRT_OUT_96
#undef MUONRT_OUT_64
#undef MUONRT_OUT_32
#undef MUONRT_OUT_8
#undef MUONRT_SUMS_128
#undef MUONRT_SUMS_96
#undef MUONRT_SUMS_64
#undef MUONRT_SUMS_32

/// Call this function before the first product of a group. It makes earlier register writes visible
/// to this product.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until all groups except the last kPending are complete.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Call this function after the last wait, so that the compiler does not move a read of the sums
/// before the wait.
template <int kSums>
__device__ inline void wgmma_settle(float (&sums)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

}  // namespace muonrt::cuda
