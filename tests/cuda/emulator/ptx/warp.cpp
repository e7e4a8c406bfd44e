#include <stdexcept>

#include "block.hpp"
#include "cuda/symmetric/ptx_sm75.cuh"
#include "ptx/order.hpp"
#include "ptx/program.hpp"

// Operations that the lanes of a warp execute together. Source: PTX ISA 9.0, section 9.7.

namespace emulator::ptx {

namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

void warp_barrier(Thread& t, const Instruction& i) {
  require(t.get<uint32_t>(i.at[0]) == 0xffffffffu, "a barrier of part of a warp");
  order::arrive(order::of_warp());
  muonrt::cuda::warp_sync();
  order::depart(order::of_warp());
}
void shuffle_down(Thread& t, const Instruction& i) {
  require(t.get<int>(i.at[4]) == 31, "a shuffle of part of a warp");
  const uint32_t delta = t.get<uint32_t>(i.at[3]);
  const uint32_t word =
      __shfl_down_sync(t.get<uint32_t>(i.at[5]), t.get<uint32_t>(i.at[2]), static_cast<int>(delta));
  t.set<uint32_t>(i.at[0], word);
  t.set<bool>(i.at[1], threadIdx.x % 32 + delta < 32);
}
/// Receives the value of another lane. The other lane's index either differs from this lane's index
/// in some bits, or is the same for all lanes. All lanes take part.
template <auto kShuffle>
void shuffle(Thread& t, const Instruction& i) {
  require(t.get<int>(i.at[4]) == 31, "a shuffle of part of a warp");
  t.set<uint32_t>(
      i.at[0], kShuffle(t.get<uint32_t>(i.at[5]), t.get<uint32_t>(i.at[2]), t.get<int>(i.at[3])));
  t.set<bool>(i.at[1], true);
}
/// Elects one lane of a warp. All lanes take part.
void elect_one(Thread& t, const Instruction& i) {
  require(t.get<uint32_t>(i.at[2]) == 0xffffffffu, "an election of part of a warp");
  muonrt::cuda::warp_sync();
  t.set<bool>(i.at[1], threadIdx.x % 32 == 0);
}
}  // namespace

void add_warp(Table& table) {
  table["bar.warp.sync"] = warp_barrier;
  table["elect.sync"] = elect_one;
  table["shfl.sync.down.b32"] = shuffle_down;
  table["shfl.sync.bfly.b32"] = shuffle<__shfl_xor_sync>;
  table["shfl.sync.idx.b32"] = shuffle<__shfl_sync>;
}

}  // namespace emulator::ptx
