#include "command/state/verify.hpp"

#include <fmt/format.h>

#include <optional>

#include "command/progress.hpp"
#include "show/fit.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

namespace {

/// The result of checking a checkpoint: the problems or, if there are none, all tensors.
struct Verified {
  int64_t step = 0, files = 0, bytes = 0, tensors = 0;
  std::vector<std::string> problems;
};

Verified verify(const Saved& saved) {
  Verified out;
  std::optional<Checkpoint> checkpoint;
  try {
    checkpoint.emplace(saved.open());
  } catch (const Error&) {
    out.problems.push_back(muonrt_get_last_error());
    return out;
  }
  const muonrt_checkpoint_info_t info = checkpoint->info();
  out.step = info.step;
  out.files = info.n_files;
  Progress progress;
  progress.show(fmt::format("verify: {} in {} files", cell::bytes(info.bytes).text, info.n_files));
  const muonrt_status_t status = muonrt_checkpoint_verify(checkpoint->get());
  if (status != MUONRT_ERROR_IO && status != MUONRT_ERROR_CORRUPT) check(status);
  out.problems = checkpoint->problems();
  for (int64_t i = 0; i < info.n_tensors; ++i) {
    auto tensor = detail::filled(muonrt_checkpoint_tensor_init_sized);
    // If a tensor cannot be read, the list already contains the problem.
    if (muonrt_checkpoint_get_tensor(&tensor, checkpoint->get(), i) != MUONRT_OK) continue;
    out.bytes += tensor.bytes;
    out.tensors += tensor.bytes > 0;
  }
  return out;
}

}  // namespace

bool verify_checkpoint(const Saved& saved, bool json) {
  const Verified found = verify(saved);
  const bool good = found.problems.empty();
  if (json) {
    fmt::print("{}\n", json_object({{"manifest", json_text(saved.path())},
                                    {"step", fmt::to_string(found.step)},
                                    {"files", fmt::to_string(found.files)},
                                    {"bytes", fmt::to_string(found.bytes)},
                                    {"tensors", fmt::to_string(found.tensors)},
                                    {"problems", texts_json(found.problems)}}));
    return good;
  }
  for (const std::string& problem : found.problems) print_fitted(problem + "\n");
  print_fitted(
      fmt::format("{}: {} of data in {} files, {} tensors; {}\n", saved.path(),
                  cell::bytes(found.bytes).text, found.files, found.tensors,
                  good ? "nothing is wrong" : fmt::format("#wrong: {}", found.problems.size())));
  return good;
}

}  // namespace muonrt::tool
