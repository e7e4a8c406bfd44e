#include "command/plan/meshes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>

namespace muonrt::tool {

namespace {

constexpr int64_t kMaxRanks = int64_t{1} << 24;

}  // namespace

TextMesh::TextMesh(const std::string& text, const std::string& option) {
  int64_t ranks = 1;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    std::string item = text.substr(at, end - at);
    std::erase(item, ' ');
    const size_t equal = item.find('=');
    int64_t n = 0;
    const char* last = item.data() + item.size();
    const bool valid = equal != std::string::npos && equal > 0;
    const auto read = std::from_chars(item.data() + (valid ? equal + 1 : item.size()), last, n);
    if (!valid || read.ec != std::errc() || read.ptr != last || n < 1)
      throw std::runtime_error(
          fmt::format("{} '{}': '{}' is not a mesh dimension; write name=size with a size of 1 or "
                      "more, such as "
                      "dp=2,fsdp=4",
                      option, text, item));
    names_.push_back(item.substr(0, equal));
    sizes_.push_back(n);
    if (n > kMaxRanks / ranks)
      throw std::runtime_error(fmt::format("{} '{}' has more than {} ranks; use a smaller mesh",
                                           option, text, kMaxRanks));
    ranks *= n;
    at = end + 1;
  }
  if (dims() > MUONRT_MAX_DIMS - 1)
    throw std::runtime_error(fmt::format("{} '{}' has {} dimensions, but may have {}; join some",
                                         option, text, dims(), MUONRT_MAX_DIMS - 1));
  for (size_t i = 0; i < names_.size(); ++i)
    if (std::find(names_.begin(), names_.begin() + static_cast<std::ptrdiff_t>(i), names_[i]) !=
        names_.begin() + static_cast<std::ptrdiff_t>(i))
      throw std::runtime_error(fmt::format("{} '{}': the name '{}' occurs twice; use another one",
                                           option, text, names_[i]));
  if (names_.empty()) prepend("dp", 1);
}

void TextMesh::prepend(const std::string& name, int64_t size) {
  names_.insert(names_.begin(), name);
  sizes_.insert(sizes_.begin(), size);
}

int64_t TextMesh::size() const {
  int64_t out = 1;
  for (const int64_t n : sizes_) out *= n;
  return out;
}

bool TextMesh::has(const std::string& name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

std::string TextMesh::text() const {
  std::string out;
  for (int d = 0; d < dims(); ++d)
    out += fmt::format("{}{}={}", d > 0 ? "," : "", name(d), size(d));
  return out;
}

muonrt_mesh_t TextMesh::c() const {
  name_pointers_.clear();
  for (const std::string& name : names_) name_pointers_.push_back(name.c_str());
  muonrt_mesh_t out;
  muonrt_mesh_init(&out);
  out.ndim = dims();
  out.shape = sizes_.data();
  out.names = name_pointers_.data();
  return out;
}

PlanMeshes::PlanMeshes(const std::string& mesh, const std::string& experts)
    : dense_(mesh, "--mesh"), experts_(experts.empty() ? mesh : experts, "--experts") {
  const int64_t all = dense_.size(), some = experts_.size();
  if (all % some != 0)
    throw std::runtime_error(fmt::format(
        "--experts '{}' has {} ranks, but --mesh '{}' has {}, which is not a multiple of them; let "
        "the sizes of --experts divide it",
        experts, some, mesh, all));
  for (int d = 0; d < dense_.dims(); ++d)
    if (dense_.name(d) == "ddp" && dense_.size(d) > 1 && !experts_.has("ddp"))
      throw std::runtime_error(
          fmt::format("--mesh '{}' has partial gradients over ddp={}, but --experts '{}' has no "
                      "ddp; name it in "
                      "--experts, or use dp, whose gradients are reduced",
                      mesh, dense_.size(d), experts));
  if (all == some) return;
  for (const char* name : {"dp_replicate", "replicate", "hsdp_replicate", "dp"}) {
    if (experts_.has(name)) continue;
    experts_.prepend(name, all / some);
    return;
  }
  throw std::runtime_error(
      fmt::format("--experts '{}' has only {} of {} ranks; add a dimension for the replicas",
                  experts, some, all));
}

std::vector<muonrt_placement_t> PlanMeshes::placements(const ModelTensor& tensor) const {
  const TextMesh& mesh = of(tensor);
  const muonrt_mesh_t c = mesh.c();
  std::vector<muonrt_placement_t> out(static_cast<size_t>(mesh.dims()));
  const char* name = tensor.named ? tensor.name.c_str() : nullptr;
  check(muonrt_placements_for_tensor(out.data(), &c, world(), name,
                                     static_cast<int32_t>(tensor.shape.size()), tensor.shape.data(),
                                     tensor.stack(), tensor.transposed));
  return out;
}

std::string PlanMeshes::text() const {
  const std::string dense = dense_.text(), experts = experts_.text();
  return dense == experts ? dense : dense + "; experts " + experts;
}

}  // namespace muonrt::tool
