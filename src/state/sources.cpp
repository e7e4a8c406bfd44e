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

std::vector<std::unique_ptr<PieceFile>> open_files(const std::string& folder,
                                                   const Manifest& manifest) {
  std::vector<std::unique_ptr<PieceFile>> out;
  for (const FileRecord& record : manifest.files)
    out.push_back(std::make_unique<PieceFile>(folder, record));
  return out;
}

}  // namespace

StateSources::StateSources(const std::string& folder, const Manifest& manifest)
    : StateSources(open_files(folder, manifest), manifest) {}

StateSources::StateSources(std::vector<std::unique_ptr<PieceFile>> files, const Manifest& manifest)
    : files_(std::move(files)) {
  constexpr auto kLines = static_cast<int32_t>(StateKind::kNormuon);
  std::map<std::string, const ManifestParam*> params;
  for (const ManifestParam& p : manifest.params) {
    params[p.name] = &p;
    for (const auto& [word, unused] : p.state) {
      const int32_t kind = kind_of(word);
      tensors_[{p.name, kind}].numel = kind == kLines ? 0 : product(p.shape);
    }
  }
  for (const auto& file : files_) {
    for (const FilePiece& piece : file->pieces()) {
      const std::string where = cat(file->path(), ": tensor ", in_quotes(piece.entry->name));
      const auto param = params.find(piece.param);
      const auto* const state = param == params.end() ? nullptr : &param->second->state;
      const auto dtype = state ? state->find(word_of(piece.kind)) : decltype(state->end()){};
      MUONRT_REQUIRE(state && dtype != state->end() && dtype->second == piece.entry->dtype,
                     Status::kCorrupt, where, ": the manifest has no such state, or in another ",
                     "dtype; the checkpoint is damaged, load another");
      Tensor& tensor = tensors_[{piece.param, piece.kind}];
      // How many lines there are, the first piece says for all.
      if (piece.kind == kLines && tensor.numel == 0) tensor.numel = product(piece.extent.shape);
      check_extent(piece.extent, tensor.numel, where);
      tensor.sources.push_back({file.get(), &piece});
    }
  }
}

const StateSources::Tensor& StateSources::at(const std::string& param, int32_t kind) const {
  static const Tensor none;
  const auto found = tensors_.find({param, kind});
  return found == tensors_.end() ? none : found->second;
}

int64_t StateSources::numel(const std::string& param, int32_t kind) const {
  return at(param, kind).numel;
}

std::string StateSources::where(const std::string& param, int32_t kind, int64_t element) const {
  std::string out;
  const Extent one = whole_extent(numel(param, kind)).part(element, element + 1);
  for (const Source& source : at(param, kind).sources)
    for (const Overlap& o : overlaps(one, source.piece->extent))
      out += cat(out.empty() ? "" : " and ", source.file->path(), ": byte ",
                 source.file->byte_of(*source.piece, o.second));
  return out.empty() ? "no file" : out;
}

void StateSources::forget_checks() {
  for (const auto& file : files_) file->forget_checks();
}

void StateSources::read(const std::string& param, int32_t kind, const Extent& extent,
                        const std::string& what, const Take& take) {
  std::vector<std::pair<int64_t, int64_t>> taken;  // of the extent: first, end
  for (const Source& source : at(param, kind).sources) {
    const int64_t size = element_bytes(source.piece->entry->dtype);
    for (const Overlap& o : overlaps(extent, source.piece->extent)) {
      taken.emplace_back(o.first, o.first + o.count);
      for (int64_t done = 0; done < o.count; done += kStretch) {
        const int64_t count = std::min(kStretch, o.count - done);
        const auto bytes = source.file->elements(*source.piece, o.second + done, count);
        take(o.first + done, o.element + done, bytes.first(static_cast<size_t>(count * size)));
      }
    }
  }
  std::sort(taken.begin(), taken.end());
  int64_t at_place = 0;
  const auto require = [&](bool good, int64_t place, const char* problem) {
    if (good) return;
    const int64_t element = extent.part(place, place + 1).stretches().front().element;
    throw Error(Status::kCorrupt,
                cat(what, ": element ", element, problem, " (it is in ",
                    where(param, kind, element), "); the checkpoint is damaged, load another"));
  };
  for (const auto& [first, end] : taken) {
    require(first >= at_place, first, " is there twice");
    require(first <= at_place, at_place, " is missing");
    at_place = end;
  }
  require(at_place == extent.numel(), at_place, " is missing");
}

}  // namespace muonrt
