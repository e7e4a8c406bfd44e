// Fuzzes manifests and shard files of checkpoints with correct checksums. If a file is
// inconsistent, parsing must throw an error.
#include <sys/mman.h>
#include <unistd.h>

#include "base/crc32c.hpp"
#include "fuzz/target.hpp"
#include "state/digits.hpp"
#include "state/sources.hpp"

using namespace muonrt;

namespace {

void require(bool good) {
  if (!good) __builtin_trap();
}

/// Parses a manifest.
/// @param rest  The text after the line with the checksum.
void try_manifest(const std::string& rest) {
  const std::string sum = digits_of(crc32c(rest.data(), rest.size()), 8);
  const std::string text = cat("{\"crc32c\": \"", sum, "\",\n", rest);
  const std::string again = to_text(parse_manifest(text, "manifest"));
  // If an accepted manifest is written, parsed and written again, both texts must be equal.
  require(to_text(parse_manifest(again, "manifest")) == again);
}

/// A file in memory.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& bytes) : file_(memfd_create("fuzz", MFD_CLOEXEC)) {
    require(file_ >= 0 &&
            write(file_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  ~MemoryFile() { close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  std::string name() const { return std::to_string(file_); }

 private:
  int file_;
};

/// Reads all tensors of a shard file.
/// @param data  The number of zero bytes after the header.
void try_shards(const std::string& header, size_t data) {
  std::string front(8, '\0');
  for (size_t i = 0; i < 8; ++i) front[i] = static_cast<char>(header.size() >> (8 * i));
  front += header;
  const MemoryFile memory(front + std::string(data, '\0'));
  const ManifestFile record = {memory.name(), static_cast<int64_t>(front.size() + data),
                               crc32c(front.data(), front.size())};
  std::vector<std::unique_ptr<ShardFile>> files;
  files.push_back(std::make_unique<ShardFile>("/proc/self/fd", record));
  Manifest manifest;
  std::vector<std::pair<std::string, int32_t>> tensors;
  for (const StoredShard& shard : files[0]->shards()) {
    if (kind_from_name(kind_name(shard.kind)) != shard.kind || *kind_name(shard.kind) == '\0')
      return;
    ManifestParam& p = manifest.params.emplace_back();
    p.name = shard.param;
    p.shape = shard.extent.shape;
    p.state[kind_name(shard.kind)] = shard.entry->dtype;
    tensors.emplace_back(shard.param, shard.kind);
  }
  StateSources sources(std::move(files), manifest);
  for (const auto& [param, kind] : tensors) {
    const int64_t numel = sources.numel(param, kind);
    int64_t taken = 0;
    sources.read(param, kind, whole_extent(numel), "tensor",
                 [&](int64_t first, int64_t element, std::span<const unsigned char> bytes) {
                   require(first >= 0 && first == element && element < numel && !bytes.empty());
                   for (const unsigned char byte : bytes) taken += byte == 0;
                 });
    // Each element must have been read exactly once, and must be zero.
    require(taken >= numel / 2 && taken <= static_cast<int64_t>(data));
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  if (size < 2) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 2, size - 2);
  try {
    if (data[0] == 'M') {
      try_manifest(text);
    } else {
      try_shards(text, data[1]);
    }
  } catch (const Error&) {
  }
  return 0;
}
