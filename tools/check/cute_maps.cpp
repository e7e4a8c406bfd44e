// The index maps of cuda/symmetric/layouts.hpp beside those of CuTe (CUTLASS), which GPUs have run:
// fragments of wgmma and mma, addresses of ldmatrix and stmatrix, the swizzle and the descriptor.
// Host code alone, for nvcc. Built and run by tools/check/cute.

// CuTe's other headers need this one before them:
// clang-format off
#include <cute/tensor.hpp>
#include <cute/atom/copy_atom.hpp>
#include <cute/atom/mma_atom.hpp>
// clang-format on
#include <cstdio>

#include "cuda/symmetric/layouts.hpp"

namespace {

namespace ours = muonrt::cuda;
using cute::Int;
using Element = cute::bfloat16_t;
constexpr auto kDepth = cute::GMMA::Major::K;

template <int... kSizes>
using Shape = cute::Shape<Int<kSizes>...>;
template <int... kStrides>
using Stride = cute::Stride<Int<kStrides>...>;

int compared = 0, different = 0;

void same(const char* what, int64_t mine, int64_t theirs) {
  ++compared;
  if (mine == theirs) return;
  if (++different <= 20)
    std::printf("%s: %lld, CuTe has %lld\n", what, static_cast<long long>(mine),
                static_cast<long long>(theirs));
}

template <class Instruction, int kCols>
void compare_wgmma(const char* what) {
  const typename cute::MMA_Traits<Instruction>::CLayout theirs;  // columns of 64
  for (int thread = 0; thread < 128; ++thread)
    for (int value = 0; value < kCols / 2; ++value) {
      const ours::Offset2 at = ours::wgmma_c(thread, value);
      same(what, at.row + 64 * at.col, theirs(thread, value));
    }
}

void compare_mma() {
  using Traits = cute::MMA_Traits<cute::SM80_16x8x16_F32BF16BF16F32_TN>;
  const typename Traits::ALayout a;  // columns of 16, of 8, of 16
  const typename Traits::BLayout b;
  const typename Traits::CLayout c;
  for (int lane = 0; lane < 32; ++lane) {
    for (int value = 0; value < 8; ++value) {
      const ours::Offset2 at = ours::mma_a(lane, value / 2);
      same("mma_a", at.row + 16 * (at.col + value % 2), a(lane, value));
    }
    for (int value = 0; value < 4; ++value) {
      const ours::Offset2 at = ours::mma_b(lane, value / 2);
      same("mma_b", at.row + 8 * (at.col + value % 2), b(lane, value));
      const ours::Offset2 sum = ours::mma_c(lane, value);
      same("mma_c", sum.row + 16 * sum.col, c(lane, value));
    }
  }
}

/// Element that a thread's address of a copy between registers and a square begins at.
template <class Copy, class Tensor>
int64_t address_in(const Copy& copy, const Tensor& square, const Element* begin, int thread,
                   int first, bool loads) {
  const auto mine = copy.get_slice(thread);
  if (loads) return &mine.partition_S(square)(first) - begin;
  return &mine.partition_D(square)(first) - begin;
}

template <class Layout>
auto shared_tensor(Element* memory, const Layout& layout) {
  return cute::make_tensor(cute::make_smem_ptr(memory), layout);
}

void compare_matrices() {
  static Element memory[64 * 64];
  const auto mma = cute::make_tiled_mma(cute::SM80_16x8x16_F32BF16BF16F32_TN{});
  const auto load =
      cute::make_tiled_copy_A(cute::Copy_Atom<cute::SM75_U32x4_LDSM_N, Element>{}, mma);
  const auto operand = shared_tensor(memory, cute::Layout<Shape<16, 16>, Stride<16, 1>>{});
  for (int lane = 0; lane < 32; ++lane) {
    const ours::Offset2 at = ours::ldmatrix_a(lane);
    same("ldmatrix_a", 16 * at.row + 8 * at.col, address_in(load, operand, memory, lane, 0, true));
  }
  // A square of a warpgroup: in rows, and in columns, which are the mirrored square's rows.
  const auto wgmma = cute::make_tiled_mma(cute::SM90_64x64x16_F32BF16BF16_SS<kDepth, kDepth>{});
  const auto rows = shared_tensor(memory, cute::Layout<Shape<64, 64>, Stride<64, 1>>{});
  const auto columns = shared_tensor(memory, cute::Layout<Shape<64, 64>, Stride<1, 64>>{});
  const auto straight =
      cute::make_tiled_copy_C(cute::Copy_Atom<cute::SM90_U32x4_STSM_N, Element>{}, wgmma);
  const auto mirrored =
      cute::make_tiled_copy_C(cute::Copy_Atom<cute::SM90_U16x8_STSM_T, Element>{}, wgmma);
  for (int thread = 0; thread < 128; ++thread)
    for (int strip = 0; strip < 4; ++strip) {
      const ours::Offset2 s = ours::stmatrix_straight(thread / 32, thread % 32, strip);
      same("stmatrix_straight", 64 * s.row + 8 * s.col,
           address_in(straight, rows, memory, thread, 8 * strip, false));
      const ours::Offset2 m = ours::stmatrix_mirrored(thread / 32, thread % 32, strip);
      same("stmatrix_mirrored", 64 * m.row + 8 * m.col,
           address_in(mirrored, columns, memory, thread, 8 * strip, false));
    }
}

void compare_operands() {
  const auto stage =
      cute::tile_to_shape(cute::GMMA::Layout_K_SW128_Atom<Element>{}, Shape<256, 64>{});
  const auto theirs = cute::as_position_independent_swizzle_layout(stage);
  for (int row = 0; row < 256; ++row)
    for (int k = 0; k < 64; ++k)
      same("swizzled128", ours::swizzled128(row, k / 8) + k % 8 * 2, 2 * theirs(row, k));
  static Element memory[256 * 64];
  const auto step =
      cute::local_tile(shared_tensor(memory, stage), Shape<256, 16>{}, cute::make_coord(0, 0));
  // CuTe finds no address of shared memory on the host, says so, and takes 0.
  const uint64_t descriptor =
      cute::SM90::GMMA::make_gmma_desc<cute::SM90::GMMA::Major::K>(step).desc_;
  same("wgmma_descriptor", static_cast<int64_t>(ours::wgmma_descriptor(0)),
       static_cast<int64_t>(descriptor));
}

}  // namespace

int main() {
  compare_wgmma<cute::SM90_64x256x16_F32BF16BF16_SS<kDepth, kDepth>, 256>("wgmma_c, 256 columns");
  compare_wgmma<cute::SM90_64x128x16_F32BF16BF16_SS<kDepth, kDepth>, 128>("wgmma_c, 128 columns");
  compare_wgmma<cute::SM90_64x64x16_F32F16F16_SS<kDepth, kDepth>, 64>("wgmma_c, 64 columns");
  compare_mma();
  compare_matrices();
  compare_operands();
  std::printf("%d compared, %d different\n", compared, different);
  return different == 0 ? 0 : 1;
}
