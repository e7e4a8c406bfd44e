#include "muonrt/state.h"

#include <algorithm>

#include "api/as_status.hpp"
#include "api/handles.hpp"
#include "api/structs.hpp"
#include "optimizer/agreement.hpp"
#include "state/checkpoint.hpp"
#include "state/state_shards.hpp"

using namespace muonrt;
using api::as_status;
using api::require_pointer;

namespace {

Optimizer& unwrap(muonrt_optimizer_t* handle, const char* function) {
  return api::unwrap(handle, function, "optimizer");
}

const Optimizer& unwrap(const muonrt_optimizer_t* handle, const char* function) {
  return api::unwrap(handle, function, "optimizer");
}

/// What the extents of the last call point to.
class StateShardList : public api::BorrowedStorage {
 public:
  explicit StateShardList(std::vector<StateShard> pieces) : pieces_(std::move(pieces)) {
    for (const StateShard& piece : pieces_) {
      std::vector<muonrt_run_t>& runs = runs_.emplace_back();
      std::vector<int64_t>& counts = counts_.emplace_back();
      for (const Runs& list : piece.extent.runs) {
        counts.push_back(std::ssize(list));
        for (const Run& run : list) runs.push_back({run.begin, run.end});
      }
    }
  }
  int64_t size() const { return std::ssize(pieces_); }
  muonrt_state_shard_t at(int64_t index) const {
    const auto i = static_cast<size_t>(index);
    const StateShard& piece = pieces_[i];
    muonrt_state_shard_t out;
    muonrt_state_shard_init(&out);
    out.kind = piece.tensor.kind;
    out.param = piece.tensor.param;
    out.dtype = piece.tensor.dtype == "F32"    ? MUONRT_DTYPE_F32
                : piece.tensor.dtype == "BF16" ? MUONRT_DTYPE_BF16
                                               : 0;
    out.ndim = static_cast<int32_t>(piece.extent.shape.size());
    out.shape = piece.extent.shape.data();
    out.runs = runs_[i].data();
    out.n_runs = counts_[i].data();
    out.begin = piece.extent.begin;
    out.end = piece.extent.end;
    out.data = piece.data;
    out.write_begin = piece.write_begin;
    out.write_end = piece.write_end;
    return out;
  }

 private:
  std::vector<StateShard> pieces_;
  std::vector<std::vector<muonrt_run_t>> runs_;
  std::vector<std::vector<int64_t>> counts_;
};

SaveSettings read_options(const muonrt_save_options_t* given) {
  muonrt_save_options_t o;
  muonrt_save_options_init(&o);
  if (given) o = api::read_struct(given, o, "save options");
  MUONRT_REQUIRE(o.with_params == 0 || o.with_params == 1, kInvalidArg,
                 "save options: with_params is ", o.with_params, " (0 or 1); correct it");
  MUONRT_REQUIRE(o.keep >= 1, kInvalidArg, "save options: keep is ", o.keep,
                 " (>= 1: this checkpoint is one of them); correct it");
  return {o.with_params == 1, o.keep};
}

LoadSettings read_options(const muonrt_load_options_t* given) {
  muonrt_load_options_t o;
  muonrt_load_options_init(&o);
  if (given) o = api::read_struct(given, o, "load options");
  const auto flag = [](const char* name, int32_t value) {
    MUONRT_REQUIRE(value == 0 || value == 1, kInvalidArg, "load options: ", name, " is ", value,
                   " (0 or 1); correct it");
    return value == 1;
  };
  const std::string manifest = o.manifest ? o.manifest : "";
  MUONRT_REQUIRE(manifest.find('/') == manifest.npos, kInvalidArg, "load options: manifest is ",
                 in_quotes(manifest), " (the name of a file in the folder); correct it");
  return {manifest, !flag("without_params", o.without_params), flag("partial", o.partial)};
}

void require_idle(const muonrt_optimizer_t& handle, const char* function) {
  MUONRT_REQUIRE(!handle.saving || !handle.saving->in_progress(), Status::kInvalidState, function,
                 ": a save is under way; call muonrt_optimizer_save_wait first");
}

/// What a call was given, once no rank has a bad argument, or no memory for them. Collective.
template <class Options>
struct FolderCall {
  Optimizer& optimizer;
  std::string folder = {};
  decltype(read_options(static_cast<const Options*>(nullptr))) settings = {};

  template <class Prepare>
  FolderCall(muonrt_optimizer_t* handle, const char* function, const char* to,
             const Options* options, const Prepare& prepare)
      : optimizer(unwrap(handle, function)) {
    optimizer.require_usable();
    run_collectively(optimizer.comm(), [&] {
      require_pointer(to, function, "folder");
      settings = read_options(options);
      require_idle(*handle, function);
      folder = to;
      prepare();
    });
  }
  FolderCall(muonrt_optimizer_t* handle, const char* function, const char* to,
             const Options* options)
      : FolderCall(handle, function, to, options, [] {}) {}
};

}  // namespace

extern "C" {

muonrt_status_t muonrt_optimizer_state(muonrt_optimizer_t* optimizer, int64_t param, int32_t kind,
                                       muonrt_state_view_t* view) {
  return as_status([&] {
    Optimizer& o = unwrap(optimizer, "muonrt_optimizer_state");
    require_pointer(view, "muonrt_optimizer_state", "view");
    const StateView found = o.state(param, static_cast<StateKind>(kind));
    muonrt_state_view_t out;
    muonrt_state_view_init(&out);
    out.dtype = found.dtype;
    out.data = found.data;
    out.numel = found.numel;
    out.place = static_cast<int32_t>(found.location);
    api::write_struct(view, out, "view");
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_get_update_count(const muonrt_optimizer_t* optimizer,
                                                  int64_t param, int64_t* updates) {
  return as_status([&] {
    const Optimizer& o = unwrap(optimizer, "muonrt_optimizer_get_update_count");
    require_pointer(updates, "muonrt_optimizer_get_update_count", "updates");
    *updates = o.updates(param);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_set_update_count(muonrt_optimizer_t* optimizer, int64_t param,
                                                  int64_t updates) {
  return as_status([&] {
    unwrap(optimizer, "muonrt_optimizer_set_update_count").set_updates(param, updates);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_get_state_shards(muonrt_optimizer_t* optimizer,
                                                  muonrt_state_shard_t* extents, int64_t capacity,
                                                  int64_t* n_extents) {
  return as_status([&] {
    const char* const function = "muonrt_optimizer_get_state_shards";
    const Optimizer& o = unwrap(optimizer, function);
    require_pointer(n_extents, function, "n_extents");
    MUONRT_REQUIRE(capacity >= 0, kInvalidArg, function, ": capacity is ", capacity,
                   " (>= 0); correct it");
    if (capacity != 0) require_pointer(extents, function, "extents");
    auto list = std::make_unique<StateShardList>(local_state_shards(o, false));
    const auto count = std::min(capacity, list->size());
    const size_t stride = count > 0 ? api::struct_size_of(extents, "extents", sizeof *extents) : 0;
    for (int64_t i = 0; i < count; ++i) {
      char* const to = reinterpret_cast<char*>(extents) + static_cast<size_t>(i) * stride;
      const auto size = static_cast<uint32_t>(stride);
      std::memcpy(to, &size, sizeof size);
      api::write_struct(to, list->at(i), "extents");
    }
    *n_extents = list->size();
    optimizer->extents = std::move(list);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_save(muonrt_optimizer_t* optimizer, const char* folder,
                                      const muonrt_save_options_t* options) {
  return as_status([&] {
    const FolderCall call(optimizer, "muonrt_optimizer_save", folder, options);
    Files files;
    save_state(call.optimizer, call.folder, call.settings, files);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_save_reserve(muonrt_optimizer_t* optimizer,
                                              const muonrt_save_options_t* options,
                                              int64_t* bytes) {
  return as_status([&] {
    const Optimizer& o = unwrap(optimizer, "muonrt_optimizer_save_reserve");
    require_idle(*optimizer, "muonrt_optimizer_save_reserve");
    if (!optimizer->saving) optimizer->saving = std::make_unique<BackgroundSave>();
    const int64_t taken = optimizer->saving->reserve(o, read_options(options).with_params);
    if (bytes) *bytes = taken;
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_save_begin(muonrt_optimizer_t* optimizer, const char* folder,
                                            const muonrt_save_options_t* options) {
  return as_status([&] {
    const FolderCall call(optimizer, "muonrt_optimizer_save_begin", folder, options, [&] {
      if (!optimizer->saving) optimizer->saving = std::make_unique<BackgroundSave>();
    });
    optimizer->saving->begin(call.optimizer, call.folder, call.settings);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_save_wait(muonrt_optimizer_t* optimizer) {
  return as_status([&] {
    const char* const function = "muonrt_optimizer_save_wait";
    const Optimizer& o = unwrap(optimizer, function);
    MUONRT_REQUIRE(optimizer->saving && optimizer->saving->in_progress(), Status::kInvalidState,
                   function, ": no save is under way; call muonrt_optimizer_save_begin first");
    o.require_usable();
    optimizer->saving->wait();
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_load(muonrt_optimizer_t* optimizer, const char* folder,
                                      const muonrt_load_options_t* options) {
  return as_status([&] {
    const FolderCall call(optimizer, "muonrt_optimizer_load", folder, options);
    optimizer->load_notes = load_state(call.optimizer, call.folder, call.settings);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_get_load_notes(const muonrt_optimizer_t* optimizer, char* buffer,
                                                int64_t capacity, int64_t* needed) {
  return as_status([&] {
    unwrap(optimizer, "muonrt_optimizer_get_load_notes");
    api::write_text(optimizer->load_notes, buffer, capacity, needed);
    return Status::kOk;
  });
}

}  // extern "C"
