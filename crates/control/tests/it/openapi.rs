//! The OpenAPI document: the committed file, its examples and its references.

use forebay_control::http::Origin;
use forebay_control::resources::{openapi_document, routes};
use serde_json::{Value, json};

use crate::api::Caller;

const RENEW: &str = "UPDATE_DOCS=1 cargo test -p forebay-control --test it openapi";

#[test]
fn the_committed_document_is_the_generated_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let generated = format!("{}\n", serde_json::to_string_pretty(&openapi_document()).unwrap());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(committed == generated, "docs/openapi.json differs from the code; renew it: {RENEW}");
}

fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get("$ref").and_then(Value::as_str));
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(all) => all.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn every_reference_leads_to_a_component() {
    let document = openapi_document();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 100);
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

#[tokio::test]
async fn the_example_of_every_body_is_accepted_by_its_route() {
    let document = openapi_document();
    let (_rig, api) = Caller::new(Origin::Socket).await;
    let mut tried = 0;
    for route in routes() {
        let pointer = format!(
            "/paths/~1api~1v1{}/{}/requestBody/content/application~1json/schema/$ref",
            route.path.replace('/', "~1"),
            route.method.as_str().to_ascii_lowercase()
        );
        let Some(reference) = document.pointer(&pointer).and_then(Value::as_str) else { continue };
        let schema = document.pointer(&reference[1..]).unwrap();
        let example = schema.get("example").unwrap_or_else(|| panic!("{reference} has no example"));
        // Decoding is what counts; the disks of the examples do not exist.
        if route.path != "/pool/upgrade" && !example.to_string().contains("https://") {
            let path = route.path.replace("{lun}", "0").replace(['{', '}'], "");
            let (status, answer) = api.call(route.method.clone(), &path, example.clone()).await;
            assert_ne!(status, 422, "{} {path}: {answer}", route.method);
        }
        let mut unknown = example.clone();
        unknown["no_such_field"] = json!(1);
        let path = route.path.replace("{lun}", "0").replace(['{', '}'], "");
        let (status, answer) = api.call(route.method.clone(), &path, unknown).await;
        assert_eq!(status, 422, "{} {path}: {answer}", route.method);
        tried += 1;
    }
    assert!(tried > 15, "{tried}");
}

#[tokio::test]
async fn the_document_is_served() {
    let (_rig, api) = Caller::new(Origin::Socket).await;
    assert_eq!(api.get("/openapi.json").await.1, openapi_document());
}
