#include "train/shards.hpp"

#include <algorithm>

namespace muonrt::train {

namespace {

constexpr int64_t kElement = sizeof(float), kPartialGrad = sizeof(int64_t);

std::vector<muonrt_run_t> runs_of(const muonrt_layout_t& layout, int ranks,
                                  const std::vector<int64_t>& shape, int rank, int dim) {
  int64_t count = 0;
  const auto dims = static_cast<int32_t>(shape.size());
  check(muonrt_layout_get_runs(nullptr, 0, &count, &layout, ranks, dims, shape.data(), rank, dim));
  std::vector<muonrt_run_t> runs(static_cast<size_t>(count));
  check(muonrt_layout_get_runs(runs.data(), count, &count, &layout, ranks, dims, shape.data(), rank,
                               dim));
  return runs;
}

}  // namespace

Shards::RankShards Shards::make_rank_shards(const TrainMesh& mesh,
                                            const std::vector<ParamSpec>& specs, int rank) const {
  RankShards shards;
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::vector<int64_t>& shape = specs[i].shape;
    const auto dims = static_cast<int32_t>(shape.size());
    const auto placements = mesh.placements(dims);
    muonrt_layout_t layout;
    muonrt_layout_init(&layout);
    layout.mesh = &mesh.c_mesh();
    layout.placements = placements.data();
    std::vector<int64_t> local(shape.size());
    check(muonrt_layout_get_local_shape(local.data(), &layout, ranks_, dims, shape.data(), rank));
    shards.shapes.push_back(local);
    shards.offsets.push_back(shards.elements);
    const auto rows = runs_of(layout, ranks_, shape, rank, 0);
    const int64_t width = dims > 1 ? shape[1] : 1;
    const auto columns =
        dims > 1 ? runs_of(layout, ranks_, shape, rank, 1) : std::vector<muonrt_run_t>{{0, 1}};
    for (const muonrt_run_t& row : rows) {
      for (int64_t r = row.begin; r < row.end; ++r) {
        for (const auto& [begin, end] : columns) {
          shards.stretches.push_back(
              {static_cast<int64_t>(i), r * width + begin, shards.elements, end - begin});
          shards.elements += end - begin;
        }
      }
    }
  }
  return shards;
}

Shards::Shards(const TrainMesh& mesh, const std::vector<ParamSpec>& specs, int rank)
    : rank_(rank), ranks_(mesh.ranks()) {
  for (int r = 0; r < ranks_; ++r) {
    by_rank_.push_back(make_rank_shards(mesh, specs, r));
    longest_ = std::max(longest_, by_rank_.back().elements);
  }
  gathered_.resize(static_cast<size_t>(longest_ * ranks_));
  partial_grads_out_.resize(by_rank_.size());
  partial_grads_in_.resize(by_rank_.size());
}

int64_t Shards::local_offset(int64_t index) const {
  return by_rank_[static_cast<size_t>(rank_)].offsets[static_cast<size_t>(index)];
}

std::vector<int64_t> Shards::local_shape(int64_t index) const {
  return by_rank_[static_cast<size_t>(rank_)].shapes[static_cast<size_t>(index)];
}

template <class T>
void Shards::pack(const RankShards& shards, const T* const* full, T* out) {
  for (const Stretch& s : shards.stretches) {
    std::copy_n(full[s.param] + s.full_offset, s.count, out + s.local_offset);
  }
}

void Shards::extract(const float* const* full, float* local) const {
  pack(by_rank_[static_cast<size_t>(rank_)], full, local);
}

void Shards::gather(Comm& comm, const float* local, float* const* full) {
  std::vector<float> mine(local, local + local_elements());
  mine.resize(static_cast<size_t>(longest_));
  comm.allgather(gathered_.data(), mine.data(), longest_ * kElement);
  const float* in = gathered_.data();
  for (const RankShards& shards : by_rank_) {
    for (const Stretch& s : shards.stretches) {
      std::copy_n(in + s.local_offset, s.count, full[s.param] + s.full_offset);
    }
    in += longest_;
  }
}

void Shards::reduce_scatter(Comm& comm, const int64_t* const* full, float* local) {
  std::vector<muonrt_send_t> sends;
  std::vector<muonrt_receive_t> receives;
  const auto mine = static_cast<size_t>(local_elements());
  for (int peer = 0; peer < ranks_; ++peer) {
    const RankShards& shards = by_rank_[static_cast<size_t>(peer)];
    auto& out = partial_grads_out_[static_cast<size_t>(peer)];
    out.resize(static_cast<size_t>(shards.elements));
    pack(shards, full, out.data());
    if (!out.empty()) sends.push_back({peer, 0, out.data(), shards.elements * kPartialGrad});
    auto& in = partial_grads_in_[static_cast<size_t>(peer)];
    in.resize(mine);
    if (mine) receives.push_back({peer, 0, in.data(), local_elements() * kPartialGrad});
  }
  comm.exchange(sends, receives);
  std::vector<int64_t>& total = partial_grads_in_[0];
  for (int peer = 1; peer < ranks_; ++peer) {
    const int64_t* in = partial_grads_in_[static_cast<size_t>(peer)].data();
    for (size_t i = 0; i < mine; ++i) total[i] += in[i];
  }
  for (size_t i = 0; i < mine; ++i) local[i] = static_cast<float>(Sum::value(total[i]));
}

}  // namespace muonrt::train
