#include "muonrt/state.h"

#include <algorithm>

#include "api/as_status.hpp"
#include "api/handles.hpp"
#include "api/structs.hpp"
#include "state/state_shards.hpp"

using namespace muonrt;
using api::as_status;
using api::require_pointer;

namespace {

/// The state shards that the last call returned, and the data to which their pointers refer.
class StateShardList : public api::BorrowedStorage {
 public:
  explicit StateShardList(std::vector<StateShard> shards) : shards_(std::move(shards)) {
    for (const StateShard& shard : shards_) {
      std::vector<muonrt_run_t>& runs = runs_.emplace_back();
      std::vector<int64_t>& counts = counts_.emplace_back();
      for (const Runs& list : shard.extent.runs) {
        counts.push_back(std::ssize(list));
        for (const Run& run : list) runs.push_back({run.begin, run.end});
      }
    }
  }
  int64_t size() const { return std::ssize(shards_); }
  muonrt_state_shard_t at(int64_t index) const {
    const auto i = static_cast<size_t>(index);
    const StateShard& shard = shards_[i];
    muonrt_state_shard_t out;
    muonrt_state_shard_init(&out);
    out.kind = shard.tensor.kind;
    out.param = shard.tensor.param;
    out.dtype = shard.tensor.dtype == "F32"    ? MUONRT_DTYPE_F32
                : shard.tensor.dtype == "BF16" ? MUONRT_DTYPE_BF16
                                               : 0;
    out.ndim = static_cast<int32_t>(shard.extent.shape.size());
    out.shape = shard.extent.shape.data();
    out.runs = runs_[i].data();
    out.n_runs = counts_[i].data();
    out.begin = shard.extent.begin;
    out.end = shard.extent.end;
    out.data = shard.data;
    out.write_begin = shard.write_begin;
    out.write_end = shard.write_end;
    return out;
  }

 private:
  std::vector<StateShard> shards_;
  std::vector<std::vector<muonrt_run_t>> runs_;
  std::vector<std::vector<int64_t>> counts_;
};

}  // namespace

extern "C" {

muonrt_status_t muonrt_optimizer_get_state_shards(muonrt_state_shard_t* shards, int64_t capacity,
                                                  int64_t* n_shards,
                                                  muonrt_optimizer_t* optimizer) {
  return as_status([&] {
    const char* const function = "muonrt_optimizer_get_state_shards";
    const Optimizer& o = api::unwrap_idle(optimizer, function);
    require_pointer(n_shards, function, "n_shards");
    MUONRT_REQUIRE(capacity >= 0, kInvalidArg, function, ": capacity is ", capacity,
                   ", but must be 0 or more; pass the number of elements in shards");
    if (capacity != 0) require_pointer(shards, function, "shards");
    auto list = std::make_unique<StateShardList>(local_state_shards(o, false));
    const auto count = std::min(capacity, list->size());
    const size_t stride = count > 0 ? api::struct_size_of(shards, "shards", sizeof *shards) : 0;
    for (int64_t i = 0; i < count; ++i) {
      char* const to = reinterpret_cast<char*>(shards) + static_cast<size_t>(i) * stride;
      const auto size = static_cast<uint32_t>(stride);
      std::memcpy(to, &size, sizeof size);
      api::write_struct(to, list->at(i), "shards");
    }
    *n_shards = list->size();
    optimizer->state_shards = std::move(list);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_get_update_count(int64_t* count,
                                                  const muonrt_optimizer_t* optimizer,
                                                  int64_t param) {
  return as_status([&] {
    const Optimizer& o = api::unwrap(optimizer, "muonrt_optimizer_get_update_count");
    require_pointer(count, "muonrt_optimizer_get_update_count", "count");
    *count = o.updates(param);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_set_update_count(muonrt_optimizer_t* optimizer, int64_t param,
                                                  int64_t count) {
  return as_status([&] {
    api::unwrap_idle(optimizer, "muonrt_optimizer_set_update_count").set_updates(param, count);
    return Status::kOk;
  });
}

}  // extern "C"
