// Makes checkpoints of a small model with every kind of state, for tests of `state`. Usage:
// muonrt_checkpoints FOLDER RANKS STEPS [VOCABULARY [WITH_PARAMS [KEEP [FROM]]]]. Saves a
// checkpoint after the last step, or after every step if KEEP > 1. The run continues from the
// checkpoint FROM, which may contain only a part of the state.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "muonrt/muonrt.hpp"

namespace {

/// Returns a multiple of 2^-7 from -1 to 1, which bf16 can represent.
float noise(int64_t i) {
  uint32_t x = static_cast<uint32_t>(i + 1) * 0x9e3779b1u;
  x ^= x >> 15;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  return static_cast<float>(x >> 24) / 128.0f - 1.0f;
}

enum Group { kAdamW, kMuon, kNormuon, kHeavyBall };
constexpr muonrt_placement_t kRows = {MUONRT_PLACEMENT_SHARD, 0, 1};
constexpr muonrt_placement_t kCols = {MUONRT_PLACEMENT_SHARD, 1, 1};
constexpr muonrt_placement_t kWhole = {MUONRT_PLACEMENT_REPLICATE, 0, 1};

struct Tensor {
  const char* name;
  std::vector<int64_t> shape;
  Group group;
  muonrt_placement_t placement;
  muonrt_dtype_t dtype = MUONRT_DTYPE_F32;
  muonrt_master_kind_t master = MUONRT_MASTER_AUTO;
};

struct Arguments {
  const char* folder;
  int32_t ranks;
  int64_t steps, vocabulary = 5;
  int32_t with_params = 1;
  int64_t keep = 1;
  const char* from = nullptr;
};

std::vector<Tensor> model(int64_t vocabulary) {
  return {{"embed", {vocabulary, 40}, kAdamW, kRows},
          {"blocks.0.wq", {12, 10}, kMuon, kRows, MUONRT_DTYPE_BF16},
          {"blocks.0.wk", {9, 11}, kMuon, kCols, MUONRT_DTYPE_BF16, MUONRT_MASTER_REMAINDER},
          {"blocks.0.wv", {8, 6}, kNormuon, kRows},
          {"blocks.0.experts", {3, 4, 5}, kHeavyBall, kWhole},
          {"norm", {7}, kAdamW, kWhole},
          {"empty", {0, 3}, kAdamW, kWhole}};
}

std::vector<muonrt_group_t> groups() {
  std::vector<muonrt_group_t> out(4, muonrt::muon_group());
  out[kAdamW] = muonrt::adamw_group();
  out[kNormuon].normuon_axis = MUONRT_NORMUON_ROWS;
  out[kHeavyBall].momentum_kind = MUONRT_MOMENTUM_HEAVY_BALL;
  out[kHeavyBall].momentum_dtype = MUONRT_DTYPE_BF16;
  return out;
}

/// The shard of a tensor on one rank: the indices of its elements in the tensor, and their values.
struct Shard {
  Shard(const Tensor& tensor, const muonrt::Comm& comm) {
    muonrt_layout_init(&layout);
    layout.placements = &tensor.placement;
    std::vector<int64_t> at = {0};
    for (int32_t d = 0; d < static_cast<int32_t>(tensor.shape.size()); ++d) {
      const int64_t size = tensor.shape[static_cast<size_t>(d)];
      std::vector<muonrt_run_t> runs(static_cast<size_t>(size));
      int64_t count = 0;
      muonrt::check(muonrt_layout_get_runs(runs.data(), size, &count, &layout, comm.size(),
                                           static_cast<int32_t>(tensor.shape.size()),
                                           tensor.shape.data(), comm.rank(), d));
      std::vector<int64_t> next;
      for (const int64_t before : at)
        for (int64_t r = 0; r < count; ++r)
          for (int64_t i = runs[static_cast<size_t>(r)].begin; i < runs[static_cast<size_t>(r)].end;
               ++i)
            next.push_back(before * size + i);
      at = std::move(next);
    }
    elements = std::move(at);
    grad.resize(elements.size());
    data.resize(elements.size());  // bf16 uses half of these bytes
    for (size_t i = 0; i < elements.size(); ++i) {
      const float value = noise(elements[i]);
      if (tensor.dtype == MUONRT_DTYPE_F32) {
        data[i] = value;
      } else {
        uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof bits);
        const auto half = static_cast<uint16_t>(bits >> 16);
        std::memcpy(reinterpret_cast<char*>(data.data()) + i * sizeof half, &half, sizeof half);
      }
    }
  }
  muonrt_layout_t layout;
  std::vector<int64_t> elements;
  std::vector<float> data, grad;
};

void run_rank(muonrt::Comm comm, const Arguments& a) {
  const std::vector<Tensor> tensors = model(a.vocabulary);
  std::vector<Shard> shards;
  shards.reserve(tensors.size());
  std::vector<muonrt_param_t> params(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    Shard& shard = shards.emplace_back(t, comm);
    muonrt_param_t& p = params[i];
    muonrt_param_init(&p);
    p.name = t.name;
    p.group = t.group;
    p.ndim = static_cast<int32_t>(t.shape.size());
    p.shape = t.shape.data();
    p.layout = &shard.layout;
    p.dtype = t.dtype;
    p.master_kind = t.master;
    p.data = shard.data.data();
    p.grad = shard.grad.data();
    p.grad_dtype = MUONRT_DTYPE_F32;
    if (t.shape.size() == 3) p.view = MUONRT_VIEW_STACK;
  }
  muonrt_optimizer_options_t options;
  muonrt_optimizer_options_init(&options);
  muonrt::Optimizer optimizer(comm, options, groups(), params);
  muonrt_save_options_t save;
  muonrt_save_options_init(&save);
  save.without_params = !a.with_params;
  save.keep = a.keep;
  if (a.from) {
    muonrt_load_options_t load;
    muonrt_load_options_init(&load);
    load.partial = 1;
    optimizer.load(a.from, &load);
  }
  for (int64_t step = optimizer.steps(); step < a.steps; ++step) {
    for (size_t i = 0; i < shards.size(); ++i)
      for (size_t k = 0; k < shards[i].grad.size(); ++k)
        shards[i].grad[k] =
            noise(1000003 * (step + 1) + 7919 * static_cast<int64_t>(i) + shards[i].elements[k]);
    muonrt_step_args_t args;
    muonrt_step_args_init(&args);
    args.lr = 0.01;
    optimizer.step(args);
    if (a.keep > 1 && step + 1 < a.steps) optimizer.save(a.folder, &save);
  }
  optimizer.save(a.folder, &save);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  Arguments a = {argv[1], std::atoi(argv[2]), std::atoll(argv[3])};
  if (argc > 4) a.vocabulary = std::atoll(argv[4]);
  if (argc > 5) a.with_params = std::atoi(argv[5]);
  if (argc > 6) a.keep = std::atoll(argv[6]);
  if (argc > 7) a.from = argv[7];
  muonrt::ThreadGroup group(a.ranks);
  std::vector<std::thread> threads;
  std::atomic<int> status = 0;
  for (int32_t rank = 0; rank < a.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        run_rank(group.comm(rank), a);
      } catch (const std::exception& e) {
        std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
        status = 1;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return status;
}
