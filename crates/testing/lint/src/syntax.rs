//! Definitions, methods and parameters of one Rust file, extracted from its syntax tree.
//!
//! Items below `#[cfg(test)]` are marked, so that checks can exempt them. Items that macros generate are
//! not seen.

use std::ops::RangeInclusive;

use proc_macro2::Ident;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Type, Visibility};

/// Kind of a [`Definition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DefinitionKind {
    /// A struct, enum, union, trait or type alias.
    Type,
    /// A function or method.
    Function,
    /// A module.
    Module,
    /// A constant or static.
    Constant,
    /// A named field.
    Field,
    /// An enum variant.
    Variant,
}

/// A name that the file introduces.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Kind of the item that has the name.
    pub kind: DefinitionKind,
    /// The name, without `r#`.
    pub name: String,
    /// Line, from 1.
    pub line: usize,
}

/// A field of a struct.
#[derive(Clone, Debug)]
pub struct Field {
    /// The field's name, or its index in a tuple struct.
    pub name: String,
    /// Whether the field has any visibility modifier.
    pub is_visible: bool,
    /// Line, from 1.
    pub line: usize,
}

/// A struct, enum or trait that is defined in a module.
#[derive(Clone, Debug)]
pub struct TypeDef {
    /// The type's name.
    pub name: String,
    /// `struct`, `enum` or `trait`.
    pub keyword: &'static str,
    /// Fields of a struct; empty for other types.
    pub fields: Vec<Field>,
    /// Last path segments of the derived traits.
    pub derives: Vec<String>,
    /// Whether the type is `#[repr(C)]`.
    pub is_repr_c: bool,
    /// Whether the type has any visibility modifier.
    pub is_visible: bool,
    /// Whether the type is compiled only for tests.
    pub is_test: bool,
    /// Whether the type is local to a function.
    pub is_local: bool,
    /// Line, from 1.
    pub line: usize,
}

/// A method of an inherent `impl` block.
#[derive(Clone, Debug)]
pub struct Method {
    /// The method's name.
    pub name: String,
    /// Whether it takes `self` in any form.
    pub takes_self: bool,
}

/// An inherent `impl` block.
#[derive(Clone, Debug)]
pub struct InherentImpl {
    /// Last path segment of the type.
    pub type_name: String,
    /// Associated functions.
    pub methods: Vec<Method>,
    /// Whether the block is compiled only for tests.
    pub is_test: bool,
    /// Line, from 1.
    pub line: usize,
}

/// A parameter whose type is a tuple, or a reference to, slice or array of tuples.
#[derive(Clone, Debug)]
pub struct TupleParameter {
    /// Name of the function.
    pub function: String,
    /// Whether the function is visible outside of its module.
    pub is_visible: bool,
    /// Whether the function is compiled only for tests.
    pub is_test: bool,
    /// Line, from 1.
    pub line: usize,
}

/// A parameter whose type is a primitive integer, or a reference to or an option of one.
#[derive(Clone, Debug)]
pub struct IntegerParameter {
    /// Name of the function.
    pub function: String,
    /// Name of the parameter.
    pub name: String,
    /// Whether the function is visible outside of its module.
    pub is_visible: bool,
    /// Whether the function is compiled only for tests.
    pub is_test: bool,
    /// Line, from 1.
    pub line: usize,
}

/// A module declaration without a body that is compiled only for tests.
#[derive(Clone, Debug)]
pub struct TestModule {
    /// The module's name.
    pub name: String,
    /// The value of a `#[path]` attribute.
    pub path: Option<String>,
}

/// Everything that is extracted from one file.
#[derive(Clone, Debug, Default)]
pub struct FileSyntax {
    /// Names that the file introduces.
    pub definitions: Vec<Definition>,
    /// Structs, enums and traits.
    pub types: Vec<TypeDef>,
    /// Inherent `impl` blocks.
    pub impls: Vec<InherentImpl>,
    /// Parameters of tuple types.
    pub tuple_parameters: Vec<TupleParameter>,
    /// Parameters of functions that are primitive integers.
    pub integer_parameters: Vec<IntegerParameter>,
    /// Modules in files of their own that are compiled only for tests.
    pub test_modules: Vec<TestModule>,
    /// Lines of items that are compiled only for tests.
    pub test_lines: Vec<RangeInclusive<usize>>,
    /// Whether the whole file is `#![cfg(test)]`.
    pub is_test: bool,
}

impl FileSyntax {
    /// Parses a file and extracts its definitions.
    ///
    /// Fails with the line and message of a syntax error.
    pub fn extract(source: &str) -> Result<Self, String> {
        let file = syn::parse_file(source)
            .map_err(|error| format!("line {}: {error}", error.span().start().line))?;
        let mut visitor = Visitor::default();
        visitor.syntax.is_test = file.attrs.iter().any(is_cfg_test);
        visitor.in_test = visitor.syntax.is_test;
        visitor.visit_file(&file);
        // Spans of this file are not used any more; without this they stay until the thread ends.
        proc_macro2::extra::invalidate_current_thread_spans();
        Ok(visitor.syntax)
    }

    /// Whether the item on this line is compiled only for tests.
    pub fn is_test_line(&self, line: usize) -> bool {
        self.is_test || self.test_lines.iter().any(|range| range.contains(&line))
    }
}

/// Whether an attribute is a `cfg` that requires `test`.
fn is_cfg_test(attribute: &Attribute) -> bool {
    if !attribute.path().is_ident("cfg") {
        return false;
    }
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let text: String = list.tokens.to_string().split_whitespace().collect();
    text == "test" || (text.starts_with("all(") && text[4..].split([',', ')']).any(|t| t == "test"))
}

fn line_of(ident: &Ident) -> usize {
    ident.span().start().line
}

fn name_of(ident: &Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map(str::to_owned).unwrap_or(text)
}

fn is_visible(visibility: &Visibility) -> bool {
    !matches!(visibility, Visibility::Inherited)
}

fn has_tuple(ty: &Type) -> bool {
    match ty {
        Type::Tuple(tuple) => !tuple.elems.is_empty(),
        Type::Reference(inner) => has_tuple(&inner.elem),
        Type::Slice(inner) => has_tuple(&inner.elem),
        Type::Array(inner) => has_tuple(&inner.elem),
        Type::Ptr(inner) => has_tuple(&inner.elem),
        Type::Paren(inner) => has_tuple(&inner.elem),
        Type::Group(inner) => has_tuple(&inner.elem),
        _ => false,
    }
}

/// The primitive integer types.
pub const INTEGERS: [&str; 12] =
    ["u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize"];

/// Whether a type is a primitive integer, or a reference to or an option of one.
fn is_integer(ty: &Type) -> bool {
    match ty {
        Type::Path(path) => {
            let Some(last) = path.path.segments.last() else { return false };
            let name = last.ident.to_string();
            match &last.arguments {
                syn::PathArguments::AngleBracketed(inner) if name == "Option" => {
                    inner.args.iter().any(
                        |argument| matches!(argument, syn::GenericArgument::Type(ty) if is_integer(ty)),
                    )
                }
                _ => INTEGERS.contains(&name.as_str()),
            }
        }
        Type::Reference(inner) => is_integer(&inner.elem),
        Type::Paren(inner) => is_integer(&inner.elem),
        Type::Group(inner) => is_integer(&inner.elem),
        _ => false,
    }
}

fn derives(attributes: &[Attribute]) -> Vec<String> {
    let mut found = Vec::new();
    for attribute in attributes.iter().filter(|a| a.path().is_ident("derive")) {
        let _ = attribute.parse_nested_meta(|meta| {
            found.extend(meta.path.segments.last().map(|segment| segment.ident.to_string()));
            Ok(())
        });
    }
    found
}

fn is_repr_c(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|a| a.path().is_ident("repr")).any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        list.tokens.to_string().split([',', ' ']).any(|word| word == "C")
    })
}

fn item_attributes(item: &syn::Item) -> &[Attribute] {
    use syn::Item;
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

#[derive(Default)]
struct Visitor {
    syntax: FileSyntax,
    in_test: bool,
    /// Depth of functions around the item.
    function_depth: usize,
    /// Visibility of the trait whose definition is being visited.
    visible_trait: bool,
}

impl Visitor {
    fn define(&mut self, kind: DefinitionKind, ident: &Ident) {
        let definition = Definition { kind, name: name_of(ident), line: line_of(ident) };
        self.syntax.definitions.push(definition);
    }

    fn add_type(
        &mut self,
        keyword: &'static str,
        visibility: &Visibility,
        ident: &Ident,
        attributes: &[Attribute],
        fields: Vec<Field>,
    ) {
        self.define(DefinitionKind::Type, ident);
        self.syntax.types.push(TypeDef {
            name: name_of(ident),
            keyword,
            fields,
            derives: derives(attributes),
            is_repr_c: is_repr_c(attributes),
            is_visible: is_visible(visibility),
            is_test: self.in_test,
            is_local: self.function_depth > 0,
            line: line_of(ident),
        });
    }

    fn add_signature(&mut self, signature: &syn::Signature, is_visible: bool) {
        self.define(DefinitionKind::Function, &signature.ident);
        for input in &signature.inputs {
            let syn::FnArg::Typed(typed) = input else { continue };
            if has_tuple(&typed.ty) {
                self.syntax.tuple_parameters.push(TupleParameter {
                    function: name_of(&signature.ident),
                    is_visible,
                    is_test: self.in_test,
                    line: typed.span().start().line,
                });
            }
            if let syn::Pat::Ident(pattern) = &*typed.pat
                && is_integer(&typed.ty)
            {
                self.syntax.integer_parameters.push(IntegerParameter {
                    function: name_of(&signature.ident),
                    name: name_of(&pattern.ident),
                    is_visible,
                    is_test: self.in_test,
                    line: typed.span().start().line,
                });
            }
        }
    }

    /// Visits something whose attributes may restrict it to tests.
    fn with_attributes(&mut self, attributes: &[Attribute], visit: impl FnOnce(&mut Self)) {
        let outer = self.in_test;
        self.in_test |= attributes.iter().any(is_cfg_test);
        visit(self);
        self.in_test = outer;
    }
}

impl<'ast> Visit<'ast> for Visitor {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = item_attributes(item);
        if !self.in_test && attributes.iter().any(is_cfg_test) {
            let first = attributes[0].pound_token.span.start().line;
            self.syntax.test_lines.push(first..=item.span().end().line);
        }
        self.with_attributes(attributes, |this| visit::visit_item(this, item));
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.define(DefinitionKind::Module, &item.ident);
        if item.content.is_none() && self.in_test {
            let path = item.attrs.iter().find_map(|attribute| {
                let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
                let syn::Expr::Lit(literal) = &pair.value else { return None };
                let syn::Lit::Str(text) = &literal.lit else { return None };
                pair.path.is_ident("path").then(|| text.value())
            });
            self.syntax.test_modules.push(TestModule { name: name_of(&item.ident), path });
        }
        visit::visit_item_mod(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let fields = item.fields.iter().enumerate().map(|(index, field)| Field {
            name: field.ident.as_ref().map_or_else(|| index.to_string(), name_of),
            is_visible: is_visible(&field.vis),
            line: field.ident.as_ref().map_or(line_of(&item.ident), line_of),
        });
        let fields = fields.collect();
        self.add_type("struct", &item.vis, &item.ident, &item.attrs, fields);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.add_type("enum", &item.vis, &item.ident, &item.attrs, Vec::new());
        visit::visit_item_enum(self, item);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.define(DefinitionKind::Type, &item.ident);
        visit::visit_item_union(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.define(DefinitionKind::Type, &item.ident);
        visit::visit_item_type(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.add_type("trait", &item.vis, &item.ident, &item.attrs, Vec::new());
        let outer = std::mem::replace(&mut self.visible_trait, is_visible(&item.vis));
        visit::visit_item_trait(self, item);
        self.visible_trait = outer;
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if item.trait_.is_none()
            && let Type::Path(path) = &*item.self_ty
            && let Some(segment) = path.path.segments.last()
        {
            let methods = item.items.iter().filter_map(|item| {
                let syn::ImplItem::Fn(function) = item else { return None };
                let takes_self = function.sig.receiver().is_some();
                Some(Method { name: name_of(&function.sig.ident), takes_self })
            });
            let methods = methods.collect();
            self.syntax.impls.push(InherentImpl {
                type_name: name_of(&segment.ident),
                methods,
                is_test: self.in_test,
                line: item.impl_token.span.start().line,
            });
        }
        if item.trait_.is_none() {
            visit::visit_item_impl(self, item);
        } else {
            // A trait dictates the names and signatures of its methods; only their bodies are visited.
            for item in &item.items {
                if let syn::ImplItem::Fn(function) = item {
                    self.with_attributes(&function.attrs, |this| {
                        this.function_depth += 1;
                        this.visit_block(&function.block);
                        this.function_depth -= 1;
                    });
                }
            }
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.with_attributes(&item.attrs, |this| {
            this.add_signature(&item.sig, is_visible(&item.vis));
            this.function_depth += 1;
            visit::visit_impl_item_fn(this, item);
            this.function_depth -= 1;
        });
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.add_signature(&item.sig, self.visible_trait);
        self.function_depth += 1;
        visit::visit_trait_item_fn(self, item);
        self.function_depth -= 1;
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add_signature(&item.sig, is_visible(&item.vis) && self.function_depth == 0);
        self.function_depth += 1;
        visit::visit_item_fn(self, item);
        self.function_depth -= 1;
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.define(DefinitionKind::Constant, &item.ident);
        visit::visit_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.define(DefinitionKind::Constant, &item.ident);
        visit::visit_item_static(self, item);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.define(DefinitionKind::Constant, &item.ident);
        visit::visit_impl_item_const(self, item);
    }

    fn visit_trait_item_const(&mut self, item: &'ast syn::TraitItemConst) {
        self.define(DefinitionKind::Constant, &item.ident);
        visit::visit_trait_item_const(self, item);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.define(DefinitionKind::Variant, &variant.ident);
        visit::visit_variant(self, variant);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(ident) = &field.ident {
            self.define(DefinitionKind::Field, ident);
        }
        visit::visit_field(self, field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cfg_test_is_recognized_in_conjunctions_only() {
        let test = |text: &str| {
            let item: syn::Item = syn::parse_str(&format!("{text} struct A;")).unwrap();
            item_attributes(&item).iter().any(is_cfg_test)
        };
        assert!(test("#[cfg(test)]"));
        assert!(test("#[cfg(all(test, not(loom)))]"));
        assert!(test("#[cfg(all(loom, test))]"));
        assert!(!test("#[cfg(not(test))]"));
        assert!(!test("#[cfg(any(test, loom))]"));
        assert!(!test("#[cfg(feature = \"test\")]"));
    }

    #[test]
    fn test_items_have_their_lines() {
        let syntax =
            FileSyntax::extract("fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\n").unwrap();
        assert!(!syntax.is_test_line(1));
        assert!((2..=5).all(|line| syntax.is_test_line(line)));
        assert!(!syntax.is_test_line(6));
    }

    #[test]
    fn a_syntax_error_names_its_line() {
        assert!(FileSyntax::extract("fn a() {}\nfn {").unwrap_err().starts_with("line 2"));
    }

    #[test]
    fn names_of_trait_methods_are_defined_by_the_trait_alone() {
        let syntax = FileSyntax::extract("impl Iterator for A { fn next(&mut self) {} }").unwrap();
        assert!(syntax.definitions.is_empty());
    }
}
