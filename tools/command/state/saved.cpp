#include "command/state/saved.hpp"

#include <cstring>

namespace muonrt::tool {

std::string tensor_text(const std::string& param, int32_t kind) {
  return cat(kind_name(kind), " of param ", in_quotes(param));
}

std::vector<unsigned char> whole_tensor(StateSources& sources, const ManifestParam& param,
                                        int32_t kind) {
  const std::string what = tensor_text(param.name, kind);
  const int64_t numel = sources.numel_in_files(param.name, kind, what);
  const auto size = static_cast<size_t>(element_bytes(dtype_of(param, kind)));
  std::vector<unsigned char> out(static_cast<size_t>(numel) * size);
  sources.read(param.name, kind, whole_extent(numel), what,
               [&](int64_t, int64_t element, std::span<const unsigned char> bytes) {
                 std::memcpy(out.data() + static_cast<size_t>(element) * size, bytes.data(),
                             bytes.size());
               });
  return out;
}

}  // namespace muonrt::tool
