#include "command/state/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/checked.hpp"
#include "command/progress.hpp"
#include "show/table.hpp"
#include "state/digits.hpp"
#include "state/element_hash.hpp"
#include "state/moments.hpp"

namespace muonrt::tool {

namespace {

constexpr size_t kMaxNamed = 16;  // tensors of a damaged block

using Tensor = std::pair<std::string, int32_t>;  // parameter and kind

class Verification {
 public:
  explicit Verification(const Saved& saved) : saved_(saved) {}

  void run() {
    check();
    progress_.clear();
  }

  void print(bool json) const {
    if (json) {
      std::string list;
      for (const std::string& problem : problems_)
        list += (list.empty() ? "" : ",") + json_text(problem);
      fmt::print("{}\n", json_object({{"manifest", json_text(saved_.path())},
                                      {"step", cat(manifest_.step)},
                                      {"files", cat(manifest_.files.size())},
                                      {"bytes", cat(bytes_)},
                                      {"tensors", cat(tensors_)},
                                      {"problems", "[" + list + "]"}}));
      return;
    }
    for (const std::string& problem : problems_) fmt::print("{}\n", problem);
    fmt::print("{}: {} of data in {} files, {} tensors; {}\n", saved_.path(), human_bytes(bytes_),
               manifest_.files.size(), tensors_,
               problems_.empty() ? "nothing is wrong" : cat("#wrong: ", problems_.size()));
  }
  bool good() const { return problems_.empty(); }

 private:
  template <class Work>
  bool attempt(const Work& work) {
    try {
      work();
      return true;
    } catch (const Error& e) {
      problems_.push_back(e.message());
      return false;
    }
  }

  void check() {
    if (!attempt([&] { manifest_ = saved_.read(); })) return;
    std::vector<std::unique_ptr<ShardFile>> files;
    bool all = true;
    for (const ManifestFile& record : manifest_.files)
      all &= attempt([&] { files.push_back(std::make_unique<ShardFile>(saved_.folder, record)); });
    attempt([&] {
      StateSources sources(std::move(files), manifest_);
      for (const auto& file : sources.files()) check_blocks(*file);
      if (!all) return;  // elements of a missing file would be reported as missing
      for (const ManifestParam& p : manifest_.params)
        for (const auto& [word, unused] : p.state) check_tensor(sources, p, kind_from_name(word));
    });
  }

  void check_blocks(ShardFile& file) {
    for (int64_t b = 0; b < file.blocks(); ++b) {
      progress_.show(cat("verify: ", file.path(), ": block ", b, " of ", file.blocks()));
      const std::string problem = file.problem_of(b);
      if (!problem.empty())
        problems_.push_back(cat(file.path(), ": ", problem, ": ", tensors_in(file, b)));
    }
    for (const StoredShard& shard : file.shards()) bytes_ += shard.entry->bytes();
  }

  /// The tensors in a damaged block, as text with the range of elements of each.
  std::string tensors_in(const ShardFile& file, int64_t block) {
    const int64_t begin = block * kBlockBytes, end = begin + kBlockBytes;
    std::string out;
    size_t named = 0;
    for (const StoredShard& shard : file.shards()) {
      const TensorEntry& entry = *shard.entry;
      if (entry.end <= begin || entry.begin >= end) continue;
      damaged_.insert({shard.param, shard.kind});
      if (++named > kMaxNamed) continue;
      const int64_t size = element_bytes(entry.dtype);
      const int64_t first = std::max<int64_t>(0, begin - entry.begin) / size;
      const int64_t last = ceil_div(std::min(end, entry.end) - entry.begin, size);
      const auto part = shard.extent.part(first, last).stretches();
      if (part.empty()) continue;
      out += cat(out.empty() ? "" : "; ", tensor_text(shard.param, shard.kind), ", elements ",
                 part.front().element, " to ", part.back().element + part.back().count);
    }
    if (named > kMaxNamed) out += cat("; and ", named - kMaxNamed, " more");
    return out;
  }

  void check_tensor(StateSources& sources, const ManifestParam& p, int32_t kind) {
    ++tensors_;
    if (damaged_.contains({p.name, kind})) return;
    progress_.show(cat("verify: ", tensor_text(p.name, kind)));
    const std::string& dtype = dtype_of(p, kind);
    bool good = true;
    uint64_t hash = 0;
    attempt([&] {
      sources.read(p.name, kind, whole_extent(sources.numel(p.name, kind)),
                   tensor_text(p.name, kind),
                   [&](int64_t, int64_t element, std::span<const unsigned char> bytes) {
                     if (kind == StateTensor::kParam)
                       hash += hash_elements(p.name, element, bytes, element_bytes(dtype));
                     const auto bad = bad_moment(kind, dtype, manifest_.step, bytes);
                     if (!bad || !good) return;
                     good = false;  // only the first of a tensor is reported
                     const int64_t at = element + bad->index;
                     problems_.push_back(cat(sources.where(p.name, kind, at), ": ",
                                             tensor_text(p.name, kind), ": element ", at, " ",
                                             bad->problem));
                   });
      MUONRT_REQUIRE(kind != StateTensor::kParam || hash == p.hash, Status::kCorrupt, saved_.path(),
                     ": ", tensor_text(p.name, kind), ": its elements have the hash ",
                     digits_of(hash, 16), ", but the manifest has ", digits_of(p.hash, 16));
    });
  }

  const Saved& saved_;
  Manifest manifest_;
  std::set<Tensor> damaged_;
  std::vector<std::string> problems_;
  int64_t bytes_ = 0, tensors_ = 0;
  Progress progress_;
};

}  // namespace

bool verify_checkpoint(const Saved& saved, bool json) {
  Verification verification(saved);
  verification.run();
  verification.print(json);
  return verification.good();
}

}  // namespace muonrt::tool
