#include <nanobind/stl/filesystem.h>

#include "optimizer.hpp"

namespace binding {

void Optimizer::run(const std::function<muonrt_status_t(muonrt_optimizer_t*)>& call) {
  Busy busy(busy_, "the optimizer");
  muonrt_optimizer_t* optimizer = get();
  const std::shared_ptr<Held> held = held_;
  collective(held->comm.get(), [&] { return call(optimizer); });
}

int64_t Optimizer::save_reserve(const muonrt_save_options_t& options) {
  Busy busy(busy_, "the optimizer");
  muonrt_optimizer_t* optimizer = get();
  const nb::gil_scoped_release release;
  int64_t bytes = 0;
  check(muonrt_optimizer_save_reserve(optimizer, &options, &bytes));
  return bytes;
}

namespace {

using Path = std::filesystem::path;

muonrt_save_options_t save_options(bool with_params, int64_t keep) {
  auto options = muonrt::detail::filled(muonrt_save_options_init_sized);
  options.with_params = with_params ? 1 : 0;
  options.keep = keep;
  return options;
}

template <class Call>
void save(Optimizer& optimizer, Call call, const Path& folder, bool with_params, int64_t keep) {
  const muonrt_save_options_t options = save_options(with_params, keep);
  optimizer.run([&](muonrt_optimizer_t* c) { return call(c, folder.c_str(), &options); });
}

std::vector<std::string> load(Optimizer& optimizer, const Path& folder,
                              const std::optional<Path>& manifest, bool without_params,
                              bool partial) {
  auto options = muonrt::detail::filled(muonrt_load_options_init_sized);
  options.manifest = manifest ? manifest->c_str() : nullptr;
  options.without_params = without_params ? 1 : 0;
  options.partial = partial ? 1 : 0;
  optimizer.run(
      [&](muonrt_optimizer_t* c) { return muonrt_optimizer_load(c, folder.c_str(), &options); });
  const std::string text =
      muonrt::detail::text([&](char* buffer, int64_t capacity, int64_t* needed) {
        return muonrt_optimizer_get_load_notes(optimizer.get(), buffer, capacity, needed);
      });
  std::vector<std::string> notes;
  for (size_t at = 0; at < text.size(); at += notes.back().size() + 1)
    notes.push_back(text.substr(at, text.find('\n', at) - at));
  return notes;
}

}  // namespace

void bind_checkpoint(nb::class_<Optimizer>& optimizer) {
  optimizer
      .def(
          "save",
          [](Optimizer& o, const Path& folder, bool with_params, int64_t keep) {
            save(o, muonrt_optimizer_save, folder, with_params, keep);
          },
          nb::arg("folder"), nb::kw_only(), nb::arg("with_params") = false, nb::arg("keep") = 1,
          "Saves a checkpoint: all state, counts of updates, keys of random rounding. Each rank\n"
          "writes a file into `folder`, which all ranks share; rank 0 then makes it the newest.\n"
          "Until then the folder holds what it held before. Collective, between steps.\n"
          "with_params: the parameters too; else a hash of each, which a load compares.\n"
          "keep: checkpoints that stay in the folder, this one among them.\n"
          "Rates and other settings are the caller's to keep. On CUDA what writes parameters has\n"
          "ended, or is on the default stream. Raises the same on every rank, with rank and file;\n"
          "the optimizer stays as it was.")
      .def("load", &load, nb::arg("folder"), nb::kw_only(), nb::arg("manifest") = nb::none(),
           nb::arg("without_params") = false, nb::arg("partial") = false,
           "Goes on from a checkpoint of whatever ranks and layouts, to the same bits. Returns\n"
           "notes: settings that differ, what was converted, absent or surplus.\n"
           "Collective, between steps. All is checked on every rank before anything is written.\n"
           "manifest: the name of one that was kept; none: the newest.\n"
           "without_params: parameters are left, and must be those that were saved.\n"
           "partial: what is absent starts anew, what is surplus is left; else both are refused.\n"
           "Raises the same on every rank: CorruptError with the file, IoError,\n"
           "InvalidArgumentError with what differs in another model's state, ...")
      .def(
          "save_reserve",
          [](Optimizer& o, bool with_params) {
            return o.save_reserve(save_options(with_params, 1));
          },
          nb::kw_only(), nb::arg("with_params") = false,
          "Takes host memory, so that save_begin need not write: as much as this rank writes.\n"
          "Returns how many bytes. Not collective.")
      .def(
          "save_begin",
          [](Optimizer& o, const Path& folder, bool with_params, int64_t keep) {
            save(o, muonrt_optimizer_save_begin, folder, with_params, keep);
          },
          nb::arg("folder"), nb::kw_only(), nb::arg("with_params") = false, nb::arg("keep") = 1,
          "Begins a save: copies the state into the memory of save_reserve and returns. A thread\n"
          "writes it while steps go on. Without that memory it writes here. Collective.")
      .def(
          "save_wait", [](Optimizer& o) { o.run(muonrt_optimizer_save_wait); },
          "Waits until every rank has written what was begun, and makes it the newest.\n"
          "Collective, between steps.");
}

}  // namespace binding
