#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "block.hpp"
#include "cuda/symmetric/ptx_wgmma.cuh"
#include "ptx/order.hpp"
#include "ptx/program.hpp"
#include "ptx/shared.hpp"
#include "ptx/traffic.hpp"

// Operations that threads execute together, and the engines that copy and multiply. They call the
// emulated instructions of cuda/symmetric. Source: PTX ISA 9.0, sections 9.7.13 to 9.7.16.

namespace emulator::ptx {

namespace {

using muonrt::DType;
using muonrt::cuda::TensorMap;

void nothing(Thread&, const Instruction&) {}

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

// Instructions for barriers.
void block_barrier(Thread& t, const Instruction& i) {
  require(t.get<int>(i.at[0]) == 0, "the barrier has another number");
  order::arrive(order::of_block(0));
  __syncthreads();
  order::depart(order::of_block(0));
}
void block_barrier_or(Thread& t, const Instruction& i) {
  require(t.get<int>(i.at[1]) == 0, "the barrier has another number");
  order::arrive(order::of_block(0));
  t.set<bool>(i.at[0], __syncthreads_or(t.get<bool>(i.at[2])) != 0);
  order::depart(order::of_block(0));
}
/// Waits for a barrier of the 128 threads of one warpgroup. No other warpgroup may use its number.
void group_barrier(Thread& t, const Instruction& i) {
  struct User {
    uint64_t cluster = 0;
    unsigned group = 0;
  };
  static thread_local std::array<std::array<User, 16>, 16> users;  // by block and number
  const auto number = t.get<uint32_t>(i.at[0]);
  const unsigned group = threadIdx.x / 128;
  require(i.count == 2 && t.get<int>(i.at[1]) == 128, "the barrier has another size");
  require(number > 0 && number < 16, "the number of the barrier is not between 1 and 15");
  User& user = users.at(block_in_cluster())[number];
  if (user.cluster != cluster_number()) user = {cluster_number(), group};
  require(user.group == group, "the barrier belongs to another warpgroup");
  order::arrive(order::of_block(number));
  muonrt::cuda::warpgroup_sync(static_cast<int>(group));
  order::depart(order::of_block(number));
}
/// Returns whether the thread has arrived at the barrier of the cluster and has not waited there.
uint8_t& arrived_at_cluster() {
  static thread_local std::vector<uint8_t> of_thread(2048);
  return of_thread[thread_in_cluster()];
}
void cluster_arrive(Thread&, const Instruction&) {
  require(std::exchange(arrived_at_cluster(), uint8_t{1}) == 0,
          "an arrival without a wait after it");
  order::arrive(order::of_cluster());
}
void cluster_wait(Thread&, const Instruction&) {
  require(std::exchange(arrived_at_cluster(), uint8_t{0}) == 1, "a wait without an arrival");
  muonrt::cuda::cluster_sync();
  order::depart(order::of_cluster());
}
void await_launches(Thread&, const Instruction&) { muonrt::cuda::griddepcontrol_wait(); }

// Returns a barrier in shared memory.
uint64_t* barrier_in(const SharedRange& place) { return reinterpret_cast<uint64_t*>(place.memory); }
/// Returns a barrier. Its initialization must be ordered before the current position of the running
/// thread.
SharedRange barrier_at(Thread& t, const Argument& a) {
  const SharedRange place = shared_range(t.address(a), 8);
  order::require_made(place.block, place.offset);
  return place;
}
void mbarrier_init(Thread& t, const Instruction& i) {
  const SharedRange place = shared_range(t.address(i.at[0]), 8);
  order::access(place.block, place.offset, 8, order::Access::kWrite);
  muonrt::cuda::mbarrier_init(barrier_in(place), t.get<int>(i.at[1]));
}
void mbarrier_arrive(Thread& t, const Instruction& i) {
  uint64_t* const barrier = barrier_in(barrier_at(t, i.at[1]));
  order::arrived(barrier);
  muonrt::cuda::mbarrier_arrive(barrier);
}
void barrier_expect(Thread& t, const Instruction& i) {
  uint64_t* const barrier = barrier_in(barrier_at(t, i.at[1]));
  order::arrived(barrier);
  muonrt::cuda::mbarrier_arrive_expect_tx(barrier, t.get<uint32_t>(i.at[2]));
}
/// Waits until the phase has ended. The hardware's instruction may also return earlier.
void barrier_try(Thread& t, const Instruction& i) {
  uint64_t* const barrier = barrier_in(barrier_at(t, i.at[1]));
  require(t.get<uint32_t>(i.at[2]) <= 1, "a parity other than 0 and 1");
  muonrt::cuda::mbarrier_wait(barrier, t.get<uint32_t>(i.at[2]));
  order::waited(barrier);
  t.set<bool>(i.at[0], true);
}
void address_in_block(Thread& t, const Instruction& i) {
  const uint32_t address = t.get<uint32_t>(i.at[1]), rank = t.get<uint32_t>(i.at[2]);
  require(address < 1u << kRankShift, "an address that already contains a block");
  t.set<uint32_t>(i.at[0], (rank + 1) << kRankShift | address);
}

// Returns a tensor map. Bulk copies use the box that the emulated tensor map contains.
const TensorMap& map_at(Thread& t, const Argument& a) {
  require(t.address(a) % 64 == 0, "a tensor map that is not aligned");
  return *reinterpret_cast<const TensorMap*>(t.address(a));
}
SharedRange box_at(Thread& t, const Argument& a, const TensorMap& map) {
  return shared_range(t.address(a), muonrt::cuda::bytes_of_box(map));
}
/// Records the part of a matrix that a box covers, row by row.
void note_box(const TensorMap& map, int col, int row, int matrix, order::Access access) {
  for (int r = 0; r < static_cast<int>(map.words[6]); ++r) {
    const auto* const first = muonrt::cuda::element_in(map, col, row + r, matrix);
    const int64_t left = static_cast<int64_t>(map.words[1]) - col;
    if (first)
      order::device_access(reinterpret_cast<uint64_t>(first),
                           static_cast<size_t>(2 * std::min<int64_t>(left, muonrt::cuda::kBoxCols)),
                           access);
  }
}
/// Copies a box to the blocks whose bits are set.
void bulk_load_into(Thread& t, const Instruction& i, uint16_t blocks) {
  const TensorMap& map = map_at(t, i.at[1]);
  const SharedRange box = box_at(t, i.at[0], map);
  const SharedRange barrier = barrier_at(t, i.at[5]);
  note_box(map, t.get<int>(i.at[2]), t.get<int>(i.at[3]), t.get<int>(i.at[4]),
           order::Access::kRead);
  for (unsigned block = 0; block < 16; ++block) {
    if ((blocks >> block & 1u) == 0) continue;
    order::require_made_for_engines(block, barrier.offset);
    order::bulk_write(block, box.offset, muonrt::cuda::bytes_of_box(map),
                      muonrt::cuda::in_block(barrier_in(barrier), block));
    muonrt::cuda::bulk_load_into(block, box.memory, map, t.get<int>(i.at[2]), t.get<int>(i.at[3]),
                                 t.get<int>(i.at[4]), barrier_in(barrier));
  }
}
void tma_load(Thread& t, const Instruction& i) {
  bulk_load_into(t, i, static_cast<uint16_t>(1u << block_in_cluster()));
}
void tma_load_multicast(Thread& t, const Instruction& i) {
  bulk_load_into(t, i, t.get<uint16_t>(i.at[6]));
}
void tma_store(Thread& t, const Instruction& i) {
  const TensorMap& map = map_at(t, i.at[0]);
  const SharedRange box = box_at(t, i.at[4], map);
  order::bulk_read(box.offset, muonrt::cuda::bytes_of_box(map));
  note_box(map, t.get<int>(i.at[1]), t.get<int>(i.at[2]), t.get<int>(i.at[3]),
           order::Access::kWrite);
  muonrt::cuda::tma_store(map, t.get<int>(i.at[1]), t.get<int>(i.at[2]), t.get<int>(i.at[3]),
                          box.memory);
}
void tma_store_commit(Thread&, const Instruction&) {
  order::tma_store_commit();
  muonrt::cuda::tma_store_commit();
}
void tma_store_wait(Thread& t, const Instruction& i) {
  require(t.get<int>(i.at[0]) == 0, "a wait that leaves bulk stores");
  muonrt::cuda::tma_store_wait();
  order::tma_store_wait();
}
void fence_proxy_async(Thread&, const Instruction&) {
  order::fence();
  muonrt::cuda::fence_proxy_async();
}

// Loads matrices of 8 x 8.
void ldmatrix(Thread& t, const Instruction& i) {
  const SharedRange row = shared_range(t.address(i.at[4]), 16);
  order::access(row.block, row.offset, 16, order::Access::kRead);
  traffic::note(t, traffic::Kind::kShared, row.offset, 16);
  uint32_t words[4];
  muonrt::cuda::ldmatrix(words, row.memory);
  for (int w = 0; w < 4; ++w) t.set<uint32_t>(i.at[w], words[w]);
}
template <bool kTransposed>
void stmatrix(Thread& t, const Instruction& i) {
  uint32_t words[4];
  for (int w = 0; w < 4; ++w) words[w] = t.get<uint32_t>(i.at[w + 1]);
  const SharedRange row = shared_range(t.address(i.at[0]), 16);
  order::access(row.block, row.offset, 16, order::Access::kWrite);
  traffic::note(t, traffic::Kind::kShared, row.offset, 16);
  muonrt::cuda::store_eights(row.memory, words, kTransposed);
}

// The matrix instructions that a warpgroup executes together.

/// Registers that the tensor cores are using. Until the product is complete, the emulator returns
/// NaN for reads and reports an error for writes.
struct Held {
  // Registers of the first product. All other products must use the same registers.
  const Argument* registers = nullptr;
  int count = 0;
  bool fenced = false;  // whether the next product sees all earlier writes to registers
  uint64_t cluster = 0;
  std::array<float, 128> sums;
};
constexpr uint32_t kHeld = 0x7fedcba9;

Held& held() {
  static thread_local std::vector<Held> of_thread(2048);
  Held& mine = of_thread[thread_in_cluster()];
  if (mine.cluster != cluster_number()) {
    mine.count = 0;
    mine.fenced = false;
    mine.cluster = cluster_number();
  }
  return mine;
}

/// Records the part of an MN-major B that a product reads.
void note_mn_operand(uint64_t descriptor, int cols) {
  for (int k = 0; k < muonrt::cuda::kWgmmaDepth; ++k)
    for (int col = 0; col < cols; col += muonrt::cuda::kChunk) {
      const uint32_t chunk = muonrt::cuda::chunk_of_mn(descriptor, k, col);
      order::product_read(shared_range(muonrt::cuda::swizzled_address(chunk), 16).offset, 16);
    }
}
/// Records the part of an operand that a product reads. The descriptor specifies this part, which
/// consists of rows of 32 bytes.
void note_operand(uint64_t descriptor, int rows) {
  const auto start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const auto group_stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  for (int row = 0; row < rows; ++row) {
    const uint32_t first = start + static_cast<uint32_t>(row / 8) * group_stride +
                           static_cast<uint32_t>(row % 8) * 128;
    for (uint32_t chunk = 0; chunk < 2; ++chunk)
      order::product_read(
          shared_range(muonrt::cuda::swizzled_address(first + 16 * chunk), 16).offset, 16);
  }
}

template <DType kElement, int kCols>
void multiply_of_group(Thread& t, const Instruction& i) {
  constexpr int kSums = kCols / 2;
  require(i.count == kSums + 7, "a product with unsupported operands");
  for (int k : {3, 4}) require(t.get<int>(i.at[kSums + k]) == 1, "a product with negated operands");
  require(t.get<int>(i.at[kSums + 5]) == 0, "a product with a transposed A");
  const int mn = t.get<int>(i.at[kSums + 6]);
  require(mn == 0 || mn == 1, "a product with an unknown order of B");
  Held& mine = held();
  if (mine.count == 0) {
    require(mine.fenced, "a product of registers without a fence before it");
    mine.fenced = false;
    mine.registers = i.at;
    mine.count = kSums;
    for (int k = 0; k < kSums; ++k) mine.sums[static_cast<size_t>(k)] = t.get<float>(i.at[k]);
  }
  require(mine.count == kSums, "a product of another size while one is in flight");
  for (int k = 0; k < kSums; ++k) {
    require(i.at[k].slot == mine.registers[k].slot, "products in flight use different registers");
    t.set<uint32_t>(i.at[k], kHeld);
  }
  if (threadIdx.x % 32 == 0) {  // the lanes of a warp arrive together, but each warp separately
    note_operand(t.get<uint64_t>(i.at[kSums]), muonrt::cuda::kWgmmaRows);
    (mn ? note_mn_operand : note_operand)(t.get<uint64_t>(i.at[kSums + 1]), kCols);
  }
  using muonrt::cuda::Major;
  const auto multiply = mn ? muonrt::cuda::wgmma<kElement, kCols, Major::kMN, kSums>
                           : muonrt::cuda::wgmma<kElement, kCols, Major::kK, kSums>;
  multiply(reinterpret_cast<float(&)[kSums]>(mine.sums), t.get<uint64_t>(i.at[kSums]),
           t.get<uint64_t>(i.at[kSums + 1]), t.get<bool>(i.at[kSums + 2]));
}
void fence_products(Thread&, const Instruction&) { held().fenced = true; }
void commit_products(Thread&, const Instruction&) {
  order::products_commit();
  muonrt::cuda::wgmma_commit();
}
void wait_for_products(Thread& t, const Instruction& i) {
  switch (t.get<int>(i.at[0])) {
    case 0:
      muonrt::cuda::wgmma_wait<0>();
      break;
    case 1:
      muonrt::cuda::wgmma_wait<1>();
      break;
    case 2:
      muonrt::cuda::wgmma_wait<2>();
      break;
    default:
      throw std::logic_error("a wait that leaves more products than are in flight");
  }
  order::products_wait(t.get<uint32_t>(i.at[0]));
  Held& mine = held();
  const auto& pending = muonrt::cuda::pending_products();
  if (!pending.groups.empty() || !pending.open.empty()) return;
  for (int k = 0; k < mine.count; ++k) {
    require(t.get<uint32_t>(mine.registers[k]) == kHeld, "a sum is written while a product runs");
    t.set<float>(mine.registers[k], mine.sums[static_cast<size_t>(k)]);
  }
  mine.count = 0;
  mine.fenced = false;
}

template <int kCols>
void add_products(Table& table) {
  const std::string shape = "wgmma.mma_async.sync.aligned.m64n" + std::to_string(kCols) + "k16.f32";
  table[shape + ".bf16.bf16"] = multiply_of_group<DType::kBF16, kCols>;
  table[shape + ".f16.f16"] = multiply_of_group<DType::kF16, kCols>;
}

}  // namespace

SharedRange shared_range(uint64_t address, size_t bytes) {
  const uint64_t named = address >> kRankShift, offset = address & ((1u << kRankShift) - 1);
  const unsigned block = named == 0 ? block_in_cluster() : static_cast<unsigned>(named - 1);
  require(block * blockDim.x < threads_in_cluster(),
          "shared memory of a block that does not exist");
  require(block_runs(block), "shared memory of a block that has ended");
  require(offset + bytes <= shared_bytes(), "an address beyond the block's shared memory");
  require(offset % std::min<size_t>(bytes, 16) == 0, "an address in shared memory is not aligned");
  return {block, offset, shared_memory(block) + offset};
}

void add_together(Table& table) {
  table["bar.sync"] = block_barrier;
  table["bar.red.or.pred"] = block_barrier_or;
  table["barrier.sync"] = group_barrier;
  table["barrier.cluster.arrive.release"] = cluster_arrive;
  table["barrier.cluster.wait.acquire"] = cluster_wait;
  table["griddepcontrol.wait"] = await_launches;
  for (const char* word : {"griddepcontrol.launch_dependents", "prefetch.tensormap",
                           "setmaxnreg.inc.sync.aligned.u32", "setmaxnreg.dec.sync.aligned.u32",
                           "fence.mbarrier_init.release.cluster", "fence.sc.sys", "membar.sys"})
    table[word] = nothing;

  table["mbarrier.init.shared::cta.b64"] = mbarrier_init;
  table["mbarrier.arrive.shared::cta.b64"] = mbarrier_arrive;
  table["mbarrier.arrive.shared::cluster.b64"] = mbarrier_arrive;
  table["mbarrier.arrive.expect_tx.shared::cta.b64"] = barrier_expect;
  table["mbarrier.try_wait.parity.shared::cta.b64"] = barrier_try;
  table["mapa.shared::cluster.u32"] = address_in_block;

  const std::string into_shared =
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes";
  table[into_shared] = tma_load;
  table[into_shared + ".multicast::cluster"] = tma_load_multicast;
  table["cp.async.bulk.tensor.3d.global.shared::cta.bulk_group"] = tma_store;
  table["cp.async.bulk.commit_group"] = tma_store_commit;
  table["cp.async.bulk.wait_group"] = table["cp.async.bulk.wait_group.read"] = tma_store_wait;
  table["fence.proxy.async.shared::cta"] = fence_proxy_async;

  table["ldmatrix.sync.aligned.m8n8.x4.shared.b16"] = ldmatrix;
  table["stmatrix.sync.aligned.m8n8.x4.shared.b16"] = stmatrix<false>;
  table["stmatrix.sync.aligned.m8n8.x4.trans.shared.b16"] = stmatrix<true>;
  add_products<64>(table), add_products<128>(table);
  add_products<192>(table), add_products<256>(table);
  table["wgmma.fence.sync.aligned"] = fence_products;
  table["wgmma.commit_group.sync.aligned"] = commit_products;
  table["wgmma.wait_group.sync.aligned"] = wait_for_products;
}

}  // namespace emulator::ptx
