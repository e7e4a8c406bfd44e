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

muonrt_save_options_t save_options(bool without_params, int64_t keep, bool overwrite) {
  auto options = muonrt::detail::filled(muonrt_save_options_init_sized);
  options.without_params = without_params ? 1 : 0;
  options.keep = keep;
  options.overwrite = overwrite ? 1 : 0;
  return options;
}

template <class Call>
void save(Optimizer& optimizer, Call call, const Path& folder, bool without_params, int64_t keep,
          bool overwrite) {
  const muonrt_save_options_t options = save_options(without_params, keep, overwrite);
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
  return optimizer.load_notes();
}

}  // namespace

void bind_checkpoint(nb::class_<Optimizer>& optimizer) {
  optimizer
      .def(
          "save",
          [](Optimizer& o, const Path& folder, bool without_params, int64_t keep, bool overwrite) {
            save(o, muonrt_optimizer_save, folder, without_params, keep, overwrite);
          },
          nb::arg("folder"), nb::kw_only(), nb::arg("without_params") = false, nb::arg("keep") = 1,
          nb::arg("overwrite") = false,
          nb::sig(
              "def save(self, folder: str | bytes | os.PathLike, *, without_params: bool = False, "
              "keep: int = 1, overwrite: bool = False) -> None"),
          "Saves a checkpoint: the parameters, all state, the step number, update counts, and the\n"
          "keys of stochastic rounding. Collective; call it between steps.\n\n"
          "Each rank writes a file into ``folder``, which all ranks share. Then rank 0 makes the\n"
          "checkpoint the newest. Until then the folder holds the previous checkpoint. Learning\n"
          "rates and other settings are not saved.\n\n"
          ":param without_params: save only a hash of each parameter, which load() compares.\n"
          "    A parameter with f32 masters is saved as these, and adds no bytes;\n"
          "    ``counters()[\"saved_param_bytes\"]`` is what the parameters of this rank add.\n"
          ":param keep: number of checkpoints to keep in the folder, including this one.\n"
          ":param overwrite: replace a checkpoint of another model, which has other names or "
          "shapes\n"
          "    of parameters. Otherwise it is an error.\n\n"
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
           "No rank changes its state before all ranks have verified the data that they need.\n"
           "Parameters that are not saved are computed from saved masters, or must have the\n"
           "values of the save.\n\n"
           ":param manifest: file name of a manifest in the folder, to load an older checkpoint.\n"
           "    None: the newest one.\n"
           ":param without_params: leave the parameters unchanged; they must have the values that\n"
           "    they had when the checkpoint was saved.\n"
           ":param partial: initialize missing state and ignore surplus state. Otherwise both are\n"
           "    errors.\n"
           ":return: notes: the number of parameters that were found, settings that differ, state "
           "that\n"
           "    was converted, and missing or surplus state.\n\n"
           "Every rank raises the same error: CorruptError names the file, InvalidArgumentError\n"
           "lists the differences if the checkpoint belongs to another model, IoError, ...")
      .def(
          "save_reserve",
          [](Optimizer& o, bool without_params) {
            return o.save_reserve(save_options(without_params, 1, false));
          },
          nb::kw_only(), nb::arg("without_params") = false,
          nb::sig("def save_reserve(self, *, without_params: bool = False) -> int"),
          "Reserves host memory so that save_begin() can return before the file is written.\n"
          "Returns the number of bytes that this rank writes. Not collective.")
      .def(
          "save_begin",
          [](Optimizer& o, const Path& folder, bool without_params, int64_t keep, bool overwrite) {
            save(o, muonrt_optimizer_save_begin, folder, without_params, keep, overwrite);
          },
          nb::arg("folder"), nb::kw_only(), nb::arg("without_params") = false, nb::arg("keep") = 1,
          nb::arg("overwrite") = false,
          nb::sig(
              "def save_begin(self, folder: str | bytes | os.PathLike, *, without_params: bool = "
              "False, keep: int = 1, overwrite: bool = False) -> None"),
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
