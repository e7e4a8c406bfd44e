#include "command/state/saved.hpp"

#include <cstring>

namespace muonrt::tool {

std::string tensor_text(const std::string& param, int32_t kind) {
  return cat(word_of(kind), " of param ", in_quotes(param));
}

std::vector<unsigned char> whole_tensor(StateSources& sources, const ManifestParam& param,
                                        int32_t kind) {
  const int64_t numel = sources.numel(param.name, kind);
  const auto size = static_cast<size_t>(element_bytes(dtype_of(param, kind)));
  // Only once something is there: a manifest may name what no machine holds.
  std::vector<unsigned char> out;
  sources.read(param.name, kind, whole_extent(numel), tensor_text(param.name, kind),
               [&](int64_t, int64_t element, std::span<const unsigned char> bytes) {
                 out.resize(static_cast<size_t>(numel) * size);
                 std::memcpy(out.data() + static_cast<size_t>(element) * size, bytes.data(),
                             bytes.size());
               });
  return out;
}

}  // namespace muonrt::tool
