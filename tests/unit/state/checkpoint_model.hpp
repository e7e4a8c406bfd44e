#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "muonrt/muonrt.hpp"
#include "support/numerics/noise.hpp"

/// A small model with every kind of state, its checkpoints, and the values that these checkpoints
/// must contain.
namespace checkpoint_model {

using Bytes = std::vector<unsigned char>;
using Key = std::pair<std::string, int32_t>;  // parameter and kind

/// A tensor of the model.
struct Tensor {
  const char* name;
  std::vector<int64_t> shape;
  int32_t group, shard_dim;  // shard_dim is -1 if the tensor is replicated
  muonrt_dtype_t dtype;
  muonrt_master_kind_t master;
};
inline const Tensor kModel[] = {
    {"rows", {7, 5}, 0, 0, MUONRT_DTYPE_F32, MUONRT_MASTER_AUTO},
    {"columns", {6, 11}, 0, 1, MUONRT_DTYPE_BF16, MUONRT_MASTER_AUTO},
    {"rest", {9, 4}, 0, 0, MUONRT_DTYPE_BF16, MUONRT_MASTER_REMAINDER},
    {"neurons", {8, 6}, 1, 0, MUONRT_DTYPE_F32, MUONRT_MASTER_AUTO},
    {"bias", {13}, 2, -1, MUONRT_DTYPE_F32, MUONRT_MASTER_AUTO},
    {"none", {0, 3}, 2, -1, MUONRT_DTYPE_F32, MUONRT_MASTER_AUTO},
};

inline int64_t product(const std::vector<int64_t>& shape) {
  int64_t out = 1;
  for (const int64_t size : shape) out *= size;
  return out;
}

/// One rank that trains the model. Values and gradients depend only on the index of the element.
class Rank {
 public:
  explicit Rank(muonrt::Comm comm) : comm_(std::move(comm)) {
    std::vector<muonrt_group_t> groups = {muonrt::muon_group(), muonrt::muon_group(),
                                          muonrt::adamw_group()};
    groups[0].momentum_kind = MUONRT_MOMENTUM_HEAVY_BALL;
    groups[1].normuon_axis = MUONRT_NORMUON_ROWS;
    std::vector<muonrt_param_t> params;
    std::vector<muonrt_layout_t> layouts(std::size(kModel), muonrt::layout());
    std::vector<muonrt_placement_t> placements(std::size(kModel));
    for (size_t i = 0; i < std::size(kModel); ++i) {
      const Tensor& t = kModel[i];
      placements[i] = {t.shard_dim < 0 ? MUONRT_PLACEMENT_REPLICATE : MUONRT_PLACEMENT_SHARD,
                       t.shard_dim < 0 ? 0 : t.shard_dim, 1};
      layouts[i].placements = &placements[i];
      for (int64_t e = 0; e < product(t.shape); ++e)
        if (holds(t, e)) elements_[i].push_back(e);
      data[i].resize(elements_[i].size() * (t.dtype == MUONRT_DTYPE_F32 ? 4 : 2));
      grads_[i].resize(elements_[i].size());
      for (size_t k = 0; k < elements_[i].size(); ++k) {
        const float value = test_support::noise(elements_[i][k] + 100 * static_cast<int64_t>(i));
        const size_t size = data[i].size() / elements_[i].size();
        std::memcpy(&data[i][k * size], reinterpret_cast<const char*>(&value) + 4 - size, size);
      }
      muonrt_param_t& p = params.emplace_back(muonrt::param());
      p.name = t.name;
      p.group = t.group;
      p.ndim = static_cast<int32_t>(t.shape.size());
      p.shape = t.shape.data();
      p.layout = &layouts[i];
      p.dtype = t.dtype;
      p.master_kind = t.master;
      p.data = data[i].data();
      p.grad = grads_[i].data();
      p.grad_dtype = MUONRT_DTYPE_F32;
    }
    optimizer.emplace(comm_, muonrt::options(), groups, params);
  }

  void step(int64_t number) {
    for (size_t i = 0; i < std::size(kModel); ++i)
      for (size_t k = 0; k < grads_[i].size(); ++k)
        grads_[i][k] = test_support::noise(9000 * (number + 1) + 100 * static_cast<int64_t>(i) +
                                           elements_[i][k]);
    optimizer->step(0.01);
  }
  void save(const std::string& folder, int32_t with_params, int64_t keep = 1) {
    auto options = muonrt::detail::filled(muonrt_save_options_init_sized);
    options.without_params = with_params == 0;
    options.keep = keep;
    optimizer->save(folder, &options);
  }

  std::optional<muonrt::Optimizer> optimizer;
  Bytes data[std::size(kModel)];

 private:
  bool holds(const Tensor& t, int64_t element) const {
    if (t.shard_dim < 0) return true;
    const int64_t ranks = comm_.size(), size = t.shape[static_cast<size_t>(t.shard_dim)];
    const int64_t at = t.shard_dim == 0 ? element / (product(t.shape) / size) : element % size;
    return at / ((size + ranks - 1) / ranks) == comm_.rank();
  }

  muonrt::Comm comm_;
  std::vector<int64_t> elements_[std::size(kModel)];
  std::vector<float> grads_[std::size(kModel)];
};

inline void on_threads(int32_t ranks, const std::function<void(Rank&)>& work) {
  muonrt::ThreadGroup group(ranks);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      Rank one(group.comm(rank));
      work(one);
    });
  for (std::thread& t : threads) t.join();
}

/// Saves a checkpoint after `steps` steps.
inline void save(const std::string& folder, int32_t ranks, int64_t steps, int32_t with_params = 1,
                 int64_t keep = 1) {
  on_threads(ranks, [&](Rank& rank) {
    for (int64_t s = 0; s < steps; ++s) rank.step(s);
    rank.save(folder, with_params, keep);
  });
}

/// Returns all tensors after `steps` steps on one rank, as the optimizer stores them.
inline std::map<Key, Bytes> values_after(int64_t steps) {
  Rank rank(muonrt::Comm::self());
  for (int64_t s = 0; s < steps; ++s) rank.step(s);
  std::map<Key, Bytes> out;
  for (size_t i = 0; i < std::size(kModel); ++i)
    out[{kModel[i].name, MUONRT_STATE_PARAM}] = rank.data[i];
  for (const muonrt_state_shard_t& shard : rank.optimizer->state_shards()) {
    const int64_t size = shard.dtype == MUONRT_DTYPE_F32 ? 4 : 2;
    const auto* const from = static_cast<const unsigned char*>(shard.data);
    out[{kModel[shard.param].name, shard.kind}] =
        Bytes(from, from + (shard.end - shard.begin) * size);
  }
  return out;
}

}  // namespace checkpoint_model
