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
          "Saves a checkpoint to ``folder``, which all ranks must see. Collective. Call it\n"
          "between steps.\n\n"
          "The checkpoint contains the parameters, all state, the step number, update counts,\n"
          "and the seed and keys of stochastic rounding. load() does not restore learning rates\n"
          "and other settings.\n\n"
          "Each rank writes one file. Then rank 0 makes the new checkpoint the newest one in\n"
          "the folder. Until then, the previous checkpoint remains the newest, so an\n"
          "interrupted save does no harm.\n\n"
          ":param without_params: True saves a hash of each parameter instead of its values.\n"
          "    load() compares these hashes with the optimizer's parameters. Even with False, a\n"
          "    parameter with float32 master weights usually adds no bytes, because load()\n"
          "    computes it from the master weights. ``counters()[\"saved_param_bytes\"]`` is\n"
          "    the number of bytes that the parameters of this rank add.\n"
          ":param keep: number of checkpoints to keep in the folder, including the new one.\n"
          ":param overwrite: whether to replace the checkpoint of a different model, in which a\n"
          "    parameter has a different name or shape. With False, the call raises\n"
          "    InvalidArgumentError in this case.\n\n"
          "On CUDA, before this call, the parameters must have been written, or the work that\n"
          "writes them must be enqueued on the default stream. If the save fails, every rank\n"
          "raises the same exception, whose message names the rank and the file. Parameters and\n"
          "state do not change.")
      .def("load", &load, nb::arg("folder"), nb::kw_only(), nb::arg("manifest") = nb::none(),
           nb::arg("without_params") = false, nb::arg("partial") = false,
           nb::sig("def load(self, folder: str | bytes | os.PathLike, *, "
                   "manifest: str | bytes | os.PathLike | None = None, "
                   "without_params: bool = False, partial: bool = False) -> list[str]"),
           "Loads a checkpoint, which may have been saved with any number of ranks and any\n"
           "layouts. Collective. Call it between steps. If the optimizer then receives the same\n"
           "gradients, its results are bitwise identical to those of a run without\n"
           "interruption.\n\n"
           "No rank changes its state until all ranks have verified the data that they need. If\n"
           "the checkpoint does not contain a parameter, load() computes the parameter from its\n"
           "saved master weights. If these are missing, too, the parameter must have the same\n"
           "values as when the checkpoint was saved.\n\n"
           ":param manifest: file name of a manifest in the folder, which selects an older\n"
           "    checkpoint. None selects the newest one.\n"
           ":param without_params: True leaves all parameters unchanged. They must have the\n"
           "    same values as when the checkpoint was saved.\n"
           ":param partial: True initializes state that is missing in the checkpoint, and\n"
           "    ignores entries that the optimizer does not need. With False, each of the two\n"
           "    is an error.\n"
           ":return: notes: the number of parameters that were loaded, settings that differ,\n"
           "    state that was converted, and state that was initialized or ignored.\n\n"
           "If the load fails, every rank raises the same exception. CorruptError names the\n"
           "damaged file. InvalidArgumentError lists the differences if the checkpoint belongs\n"
           "to a different model. IoError means that a file could not be read.")
      .def(
          "save_reserve",
          [](Optimizer& o, bool without_params) {
            return o.save_reserve(save_options(without_params, 1, false));
          },
          nb::kw_only(), nb::arg("without_params") = false,
          nb::sig("def save_reserve(self, *, without_params: bool = False) -> int"),
          "Reserves host memory so that save_begin() can return before the file is written. Not\n"
          "collective.\n\n"
          ":param without_params: the value that you will pass to save_begin().\n"
          ":return: the number of bytes that this rank writes.")
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
          "Starts a save in the background. Collective. Call it between steps, with the\n"
          "arguments of save().\n\n"
          "The call copies the parameters and the state into the memory that save_reserve() has\n"
          "reserved, and returns. A thread then writes the file while training continues. If\n"
          "not enough memory is reserved, the call writes the file itself before it returns.\n"
          "Call save_wait() to finish the save.")
      .def(
          "save_wait", [](Optimizer& o) { o.run(muonrt_optimizer_save_wait); },
          nb::sig("def save_wait(self) -> None"),
          "Finishes the save that save_begin() has started. Collective. Call it between steps.\n"
          "The call waits until every rank has written its file, and then makes the new\n"
          "checkpoint the newest one in the folder.");
}

}  // namespace binding
