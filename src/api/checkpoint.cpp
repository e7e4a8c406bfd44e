#include "muonrt/checkpoint.h"

#include "api/as_status.hpp"
#include "api/handles.hpp"
#include "api/structs.hpp"
#include "optimizer/agreement.hpp"
#include "state/checkpoint.hpp"

using namespace muonrt;
using api::as_status;
using api::require_pointer;

namespace {

SaveSettings read_options(const muonrt_save_options_t* given) {
  muonrt_save_options_t o;
  muonrt_save_options_init(&o);
  if (given) o = api::read_struct(given, o, "save options");
  const auto flag = [](const char* name, int32_t value) {
    MUONRT_REQUIRE(value == 0 || value == 1, kInvalidArg, "save options: ", name, " is ", value,
                   ", but must be 0 or 1; set it to one of these");
    return value == 1;
  };
  MUONRT_REQUIRE(o.keep >= 1, kInvalidArg, "save options: keep is ", o.keep,
                 ", but must be 1 or more, because it counts this checkpoint; set it to 1");
  return {!flag("without_params", o.without_params), o.keep, flag("overwrite", o.overwrite)};
}

LoadSettings read_options(const muonrt_load_options_t* given) {
  muonrt_load_options_t o;
  muonrt_load_options_init(&o);
  if (given) o = api::read_struct(given, o, "load options");
  const auto flag = [](const char* name, int32_t value) {
    MUONRT_REQUIRE(value == 0 || value == 1, kInvalidArg, "load options: ", name, " is ", value,
                   ", but must be 0 or 1; set it to one of these");
    return value == 1;
  };
  const std::string manifest = o.manifest ? o.manifest : "";
  MUONRT_REQUIRE(manifest.find('/') == manifest.npos, kInvalidArg, "load options: manifest is ",
                 in_quotes(manifest),
                 ", but must be the name of a file in the folder; leave out the path");
  return {manifest, !flag("without_params", o.without_params), flag("partial", o.partial)};
}

void require_idle(const muonrt_optimizer_t& handle, const char* function) {
  MUONRT_REQUIRE(!handle.saving || !handle.saving->in_progress(), Status::kInvalidState, function,
                 ": a save is in progress; call muonrt_optimizer_save_wait() first");
}

/// The arguments of a save or load. The constructor is collective. If a rank has an invalid
/// argument, or not enough memory, the constructor throws the same error on all ranks.
template <class Options>
struct FolderCall {
  Optimizer& optimizer;
  std::string folder = {};
  decltype(read_options(static_cast<const Options*>(nullptr))) settings = {};

  template <class Prepare>
  FolderCall(muonrt_optimizer_t* handle, const char* function, const char* to,
             const Options* options, const Prepare& prepare)
      : optimizer(api::unwrap(handle, function)) {
    optimizer.settle();
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

muonrt_status_t muonrt_optimizer_save(muonrt_optimizer_t* optimizer, const char* folder,
                                      const muonrt_save_options_t* options) {
  return as_status([&] {
    const FolderCall call(optimizer, "muonrt_optimizer_save", folder, options);
    Files files;
    optimizer->saved = save_state(call.optimizer, call.folder, call.settings, files);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_save_reserve(int64_t* bytes, muonrt_optimizer_t* optimizer,
                                              const muonrt_save_options_t* options) {
  return as_status([&] {
    const Optimizer& o = api::unwrap(optimizer, "muonrt_optimizer_save_reserve");
    require_idle(*optimizer, "muonrt_optimizer_save_reserve");
    if (!optimizer->saving) optimizer->saving = std::make_unique<BackgroundSave>();
    const int64_t reserved = optimizer->saving->reserve(o, read_options(options).with_params);
    if (bytes) *bytes = reserved;
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_save_begin(muonrt_optimizer_t* optimizer, const char* folder,
                                            const muonrt_save_options_t* options) {
  return as_status([&] {
    const FolderCall call(optimizer, "muonrt_optimizer_save_begin", folder, options, [&] {
      if (!optimizer->saving) optimizer->saving = std::make_unique<BackgroundSave>();
    });
    optimizer->saved = optimizer->saving->begin(call.optimizer, call.folder, call.settings);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_save_wait(muonrt_optimizer_t* optimizer) {
  return as_status([&] {
    const char* const function = "muonrt_optimizer_save_wait";
    const Optimizer& o = api::unwrap(optimizer, function);
    MUONRT_REQUIRE(optimizer->saving && optimizer->saving->in_progress(), Status::kInvalidState,
                   function, ": no save is in progress; call muonrt_optimizer_save_begin() first");
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

muonrt_status_t muonrt_optimizer_get_load_notes(char* buffer, int64_t capacity, int64_t* needed,
                                                const muonrt_optimizer_t* optimizer) {
  return as_status([&] {
    api::unwrap(optimizer, "muonrt_optimizer_get_load_notes");
    api::write_text(optimizer->load_notes, buffer, capacity, needed);
    return Status::kOk;
  });
}

}  // extern "C"
