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
  const GilReleased release;
  int64_t bytes = 0;
  check(muonrt_optimizer_save_reserve(&bytes, optimizer, &options));
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
  const std::string text = optimizer.load_notes();
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
          nb::sig("def save(self, folder: str | bytes | os.PathLike, *, with_params: bool = False, "
                  "keep: int = 1) -> None"),
          "Saves a checkpoint: all state, the step number, update counts, and the keys of\n"
          "stochastic rounding. Collective; call it between steps.\n\n"
          "Each rank writes a file into ``folder``, which all ranks share. Then rank 0 makes the\n"
          "checkpoint the newest. Until then the folder holds the previous checkpoint. Learning\n"
          "rates and other settings are not saved.\n\n"
          ":param with_params: save the parameters, too. Otherwise only a hash of each parameter\n"
          "    is saved, which load() compares.\n"
          ":param keep: number of checkpoints to keep in the folder, including this one.\n\n"
          "On CUDA the parameters have been written, or their writes are enqueued on the default\n"
          "stream. Every rank raises the same error, which names the rank and the file; the\n"
          "optimizer is then unchanged.")
      .def("load", &load, nb::arg("folder"), nb::kw_only(), nb::arg("manifest") = nb::none(),
           nb::arg("without_params") = false, nb::arg("partial") = false,
           nb::sig("def load(self, folder: str | bytes | os.PathLike, *, "
                   "manifest: str | bytes | os.PathLike | None = None, "
                   "without_params: bool = False, partial: bool = False) -> list[str]"),
           "Loads a checkpoint of any number of ranks and any layouts. Training then continues\n"
           "with bitwise identical results. Collective; call it between steps.\n\n"
           "No rank changes its state before all ranks have verified the data that they need.\n\n"
           ":param manifest: file name of a manifest in the folder, to load an older checkpoint.\n"
           "    None: the newest one.\n"
           ":param without_params: leave the parameters unchanged; they must have the values that\n"
           "    they had when the checkpoint was saved.\n"
           ":param partial: initialize missing state and ignore surplus state. Otherwise both are\n"
           "    errors.\n"
           ":return: notes about settings that differ, about state that was converted, and about\n"
           "    missing or surplus state.\n\n"
           "Every rank raises the same error: CorruptError names the file, InvalidArgumentError\n"
           "lists the differences if the checkpoint belongs to another model, IoError, ...")
      .def(
          "save_reserve",
          [](Optimizer& o, bool with_params) {
            return o.save_reserve(save_options(with_params, 1));
          },
          nb::kw_only(), nb::arg("with_params") = false,
          nb::sig("def save_reserve(self, *, with_params: bool = False) -> int"),
          "Reserves host memory so that save_begin() can return before the file is written.\n"
          "Returns the number of bytes that this rank writes. Not collective.")
      .def(
          "save_begin",
          [](Optimizer& o, const Path& folder, bool with_params, int64_t keep) {
            save(o, muonrt_optimizer_save_begin, folder, with_params, keep);
          },
          nb::arg("folder"), nb::kw_only(), nb::arg("with_params") = false, nb::arg("keep") = 1,
          nb::sig("def save_begin(self, folder: str | bytes | os.PathLike, *, "
                  "with_params: bool = False, keep: int = 1) -> None"),
          "Starts a save in the background: copies the state into the memory of save_reserve()\n"
          "and returns. A thread writes the file while steps continue. Without enough reserved\n"
          "memory the call writes the file itself. Collective.")
      .def(
          "save_wait", [](Optimizer& o) { o.run(muonrt_optimizer_save_wait); },
          nb::sig("def save_wait(self) -> None"),
          "Waits until every rank has written its file of the save that save_begin() has\n"
          "started, and makes the checkpoint the newest. Collective; call it between steps.");
}

}  // namespace binding
