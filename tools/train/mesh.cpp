#include "train/mesh.hpp"

#include <charconv>
#include <stdexcept>

namespace muonrt::train {

namespace {

std::string default_mesh(int ranks) {
  if (ranks == 1) return "dp=1";
  if (ranks % 2 == 0 && ranks >= 4) return "dp=2,fsdp=" + std::to_string(ranks / 2);
  return "fsdp=" + std::to_string(ranks);
}

}  // namespace

TrainMesh::TrainMesh(const std::string& text, int ranks)
    : text_(text.empty() ? default_mesh(ranks) : text), ranks_(ranks) {
  int64_t product = 1;
  for (size_t at = 0; at <= text_.size();) {
    const size_t end = std::min(text_.find(',', at), text_.size());
    const std::string item = text_.substr(at, end - at);
    const size_t equals = item.find('=');
    int64_t size = 0;
    const char* last = item.data() + item.size();
    const char* digits = equals == std::string::npos ? last : item.data() + equals + 1;
    const auto parsed = std::from_chars(digits, last, size);
    if (equals == 0 || digits == last || parsed.ptr != last || size < 1 || size > (1 << 20)) {
      throw std::runtime_error("--mesh: '" + item +
                               "' is not a dimension; write name=size, such as dp=2");
    }
    names_.push_back(item.substr(0, equals));
    shape_.push_back(size);
    product *= size;
    at = end + 1;
  }
  if (shape_.size() > MUONRT_MAX_DIMS || product != ranks) {
    throw std::runtime_error("--mesh: the sizes of '" + text_ + "' have the product " +
                             std::to_string(product) + ", but there are " + std::to_string(ranks) +
                             " ranks; make both equal");
  }
  for (const std::string& name : names_) name_pointers_.push_back(name.c_str());
  muonrt_mesh_init(&mesh_);
  mesh_.ndim = static_cast<int32_t>(shape_.size());
  mesh_.shape = shape_.data();
  mesh_.names = name_pointers_.data();
  placements(0);  // throws if the name of a dimension is unknown
}

std::vector<muonrt_placement_t> TrainMesh::placements(int dims) const {
  std::vector<muonrt_placement_t> out(shape_.size());
  if (muonrt_placements_from_names(out.data(), &mesh_, ranks_, dims >= 2 ? 1 : -1, 0) != MUONRT_OK)
    throw std::runtime_error(std::string("--mesh: ") + muonrt_get_last_error());
  return out;
}

}  // namespace muonrt::train
