// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/position_sum.hpp>
#include <dovetail/shard/whole_unit.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dovetail {

/// Parameters of one unit that were cut when the unit had been constructed. This rank keeps its part of them; the
/// module's own tensors keep their identity and have no memory.
class CutGroup {
 public:
  /// @param text  of the error that reading one of the tensors gives
  CutGroup(std::vector<torch::Tensor> tensors, FlatLayout layout, int rank, std::string text)
      : tensors_(std::move(tensors)), layout_(std::move(layout)), rank_(rank), text_(std::move(text)) {
    torch::NoGradGuard no_grad;
    part_ = torch::zeros({layout_.part_size()}, tensors_.front().options().requires_grad(false));
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Piece piece = layout_.piece(i, rank_);
      part_.narrow(0, piece.offset, piece.numel)
          .copy_(in_storage_order(tensors_[i].variable_data()).narrow(0, piece.begin, piece.numel));
    }
    note_sums();
    free_tensors();
  }

  /// For comparing ranks: "a unit of [11, 5] [11] Float".
  std::string text() const {
    std::ostringstream text;
    text << "a unit of ";
    for (const torch::Tensor& tensor : tensors_) text << tensor.sizes() << ' ';
    text << part_.scalar_type();
    return text.str();
  }

  const std::vector<torch::Tensor>& tensors() const { return tensors_; }
  const FlatLayout& layout() const { return layout_; }
  const torch::Tensor& part() const { return part_; }
  double sum(std::size_t tensor) const { return sums_[tensor]; }  ///< position_sum of the whole tensor
  Piece piece(std::size_t tensor) const { return layout_.piece(tensor, rank_); }
  std::weak_ptr<detail::WholeUnit>& whole() { return whole_; }

  /// While they are whole.
  void note_sums() {
    sums_.clear();
    for (const torch::Tensor& tensor : tensors_) sums_.push_back(detail::position_sum(tensor));
  }

  /// Casts or moves the part, and makes tensors of the new kind of the module's. The old part stays as it is for those
  /// who have it.
  void convert(const torch::TensorOptions& to) {
    torch::NoGradGuard no_grad;
    const torch::Tensor converted = part_.to(to);
    if (converted.is_same(part_)) return;
    part_ = converted;
    free_tensors();
  }

 private:
  void free_tensors() {
    const torch::Tensor nothing = without_memory(layout_.size(), part_.options(), text_);
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      tensors_[i].set_data(alias_like(nothing, layout_.offset(i), tensors_[i].variable_data()));
  }

  std::vector<torch::Tensor> tensors_;
  FlatLayout layout_;
  int rank_;
  std::string text_;
  torch::Tensor part_;
  std::vector<double> sums_;
  std::weak_ptr<detail::WholeUnit> whole_;
};

/// All that were cut while a model was built, until the strategy wraps it. They hold on to the tensors, so that no
/// address is used for a second one.
class CutParameters {
 public:
  void add(std::unique_ptr<CutGroup> group) {
    for (std::size_t i = 0; i < group->tensors().size(); ++i)
      places_.emplace(group->tensors()[i].unsafeGetTensorImpl(), Place{group.get(), i});
    groups_.push_back(std::move(group));
  }

  bool empty() const { return groups_.empty(); }
  const std::vector<std::unique_ptr<CutGroup>>& groups() const { return groups_; }

  struct Place {
    CutGroup* group;
    std::size_t tensor;

    double sum() const { return group->sum(tensor); }
    Piece piece() const { return group->piece(tensor); }
    torch::Tensor values() const { return group->part().narrow(0, piece().offset, piece().numel); }
  };
  std::optional<Place> find(const torch::Tensor& tensor) const {
    const auto found = places_.find(tensor.unsafeGetTensorImpl());
    return found == places_.end() ? std::nullopt : std::optional(found->second);
  }

  /// Casts floating parameters.
  void convert(torch::ScalarType dtype) {
    for (const auto& group : groups_)
      if (group->part().is_floating_point()) group->convert(torch::dtype(dtype));
  }
  void move_to(torch::Device device) {
    for (const auto& group : groups_) group->convert(torch::device(device));
  }

  /// Makes whole, for good, those that `stays_cut` does not take. A collective for each.
  template <class StaysCut>
  void restore_unless(Communicator& comm, StaysCut&& stays_cut) {
    std::erase_if(groups_, [&](const std::unique_ptr<CutGroup>& group) {
      if (stays_cut(*group)) return false;
      forget(*group);
      make_whole(group->tensors(), group->layout(), group->part(), comm);
      return true;
    });
  }

  /// Moves the parts of exactly these tensors to where they stay. False where none of them was cut.
  /// @throws Error(user_code) where only some were, or others with them
  bool move_part(const std::vector<torch::Tensor>& tensors, const torch::Tensor& to) {
    if (std::none_of(tensors.begin(), tensors.end(), [&](const torch::Tensor& t) { return find(t).has_value(); }))
      return false;
    const auto place = find(tensors.front());
    const auto same = [](const torch::Tensor& a, const torch::Tensor& b) { return a.is_same(b); };
    if (!place ||
        !std::equal(tensors.begin(), tensors.end(), place->group->tensors().begin(), place->group->tensors().end(),
                    same) ||
        place->group->part().scalar_type() != to.scalar_type())
      throw Error(ExitCode::user_code,
                  "parameters were tied, frozen or cast between the building of the model and its wrapping: with "
                  "FSDP's deferred_building that must be done in configure_model.");
    torch::NoGradGuard no_grad;
    torch::Tensor(to).copy_(place->group->part());
    forget(*place->group);
    std::erase_if(groups_, [&](const auto& group) { return group.get() == place->group; });
    return true;
  }

 private:
  void forget(const CutGroup& group) {
    for (const torch::Tensor& tensor : group.tensors()) places_.erase(tensor.unsafeGetTensorImpl());
  }

  std::vector<std::unique_ptr<CutGroup>> groups_;
  std::unordered_map<c10::TensorImpl*, Place> places_;
};

}  // namespace dovetail
