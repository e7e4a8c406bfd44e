#include "state/sources.hpp"

#include <algorithm>
#include <numeric>

#include "base/checked.hpp"

namespace muonrt {

namespace {

constexpr int64_t kStretch = 1 << 18;  // elements that are given out at once

int64_t product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, checked_mul);
}

}  // namespace

StateSources::StateSources(std::string folder, const Manifest& manifest, int rank, int world)
    : folder_(std::move(folder)) {
  for (const ManifestParam& p : manifest.params) params_[p.name] = &p;
  // Ranks that lie as those that saved find all in one file, others mostly in those around it.
  const int64_t count = std::ssize(manifest.files), like = count * rank / world;
  const auto distance = [&](const FileRecord& record) {
    const int64_t from = &record - manifest.files.data() - like;
    return from >= 0 ? 2 * from : -2 * from + 1;
  };
  for (const FileRecord& record : manifest.files) unopened_.push_back(&record);
  std::sort(unopened_.begin(), unopened_.end(),
            [&](const FileRecord* a, const FileRecord* b) { return distance(*a) > distance(*b); });
}

void StateSources::open_next() {
  files_.push_back(std::make_unique<PieceFile>(folder_, *unopened_.back()));
  unopened_.pop_back();
  PieceFile& file = *files_.back();
  for (const FilePiece& piece : file.pieces()) {
    const std::string where = cat(file.path(), ": tensor ", in_quotes(piece.entry->name));
    const auto param = params_.find(piece.param);
    const auto* const state = param == params_.end() ? nullptr : &param->second->state;
    const auto dtype = state ? state->find(word_of(piece.kind)) : decltype(state->end()){};
    MUONRT_REQUIRE(state && dtype != state->end() && dtype->second == piece.entry->dtype,
                   Status::kCorrupt, where, ": the manifest has no such state, or in another ",
                   "dtype; the checkpoint is damaged, load another");
    const bool lines = piece.kind == static_cast<int32_t>(StateKind::kNormuon);
    const int64_t numel = product(lines ? piece.extent.shape : param->second->shape);
    check_extent(piece.extent, numel, where);
    sources_[{piece.param, piece.kind}].push_back({&file, &piece});
  }
}

void StateSources::forget_checks() {
  for (const auto& file : files_) file->forget_checks();
}

void StateSources::take_from(const Source& source, const Extent& extent, const Take& take,
                             Taken& taken) {
  const int64_t size = element_bytes(source.piece->entry->dtype);
  for (const Overlap& o : overlaps(extent, source.piece->extent)) {
    taken.stretches.emplace_back(o.first, o.first + o.count);
    taken.count += o.count;
    for (int64_t done = 0; done < o.count; done += kStretch) {
      const int64_t count = std::min(kStretch, o.count - done);
      const auto bytes = source.file->elements(*source.piece, o.second + done, count);
      take(o.first + done, o.element + done, bytes.first(static_cast<size_t>(count * size)));
    }
  }
}

void StateSources::read(const std::string& param, int32_t kind, const Extent& extent,
                        const std::string& what, const Take& take) {
  Taken taken;
  const std::vector<Source>& sources = sources_[{param, kind}];
  for (size_t i = 0;; ++i) {
    while (i == sources.size() && taken.count < extent.numel() && !unopened_.empty()) open_next();
    if (i == sources.size()) break;
    take_from(sources[i], extent, take, taken);
  }
  std::sort(taken.stretches.begin(), taken.stretches.end());
  int64_t at = 0;
  for (const auto& [first, end] : taken.stretches) {
    MUONRT_REQUIRE(first == at, Status::kCorrupt, what, ": element ", std::min(first, at),
                   " of its local piece is ", first < at ? "in two files" : "in no file",
                   "; the checkpoint is damaged, load another");
    at = end;
  }
  MUONRT_REQUIRE(at == extent.numel(), Status::kCorrupt, what, ": element ", at,
                 " of its local piece is in no file; the checkpoint is damaged, load another");
}

}  // namespace muonrt
